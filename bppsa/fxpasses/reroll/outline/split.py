"""The functions that are made of one with loops: itself with calls in their places, and the loops."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from bppsa.fxpasses.reroll.outline.joins import with_joins
from bppsa.fxpasses.reroll.outline.loops import LoopStatement, loops_of
from bppsa.fxpasses.reroll.outline.source import FunctionSource, source_of

RUNS = "__bppsa_loops__"  # what such a function closes over: `run(index, locals())`, and what stands for no value
LOCALS = "__bppsa_locals__"  # what such a loop closes over: `locals`, by a name that no code of the user's has


@dataclass(frozen=True)
class LoopSplit:
    source: FunctionSource
    loops: tuple[LoopStatement, ...]

    @property
    def owner(self) -> str:
        """The name of the first argument."""
        return self.source.function.__code__.co_varnames[0]

    def around(self, runs: Any) -> FunctionType:
        """The function, which has `runs` run its loops."""
        memo: dict[int, Any] = {id(loop.statement): call_of(loop, i) for i, loop in enumerate(self.loops)}
        return self.source.changed(copy.deepcopy(self.source.definition, memo).body, {RUNS: runs})

    def plain(self, index: int, names: Sequence[str]) -> FunctionType:
        """The loop as a function of the variables that have a value; gives all of them as they are behind it."""
        return self.source.make(self.parameters(names), body_of(self.loops[index].alone), {LOCALS: locals})

    def closed(self, index: int, names: Sequence[str], held: Mapping[str, Any]) -> FunctionType:
        """The same, of these variables, with others held. What it looks up is what the loop looks up.

        Those of `held` that are no variables are attributes of the owner, which it does not look at then."""
        statement = self.loops[index].alone
        if self.owner not in names:
            statement = Attributes(self.owner).visit(copy.deepcopy(statement))
        return self.source.make(self.parameters(names), body_of(statement), {**held, LOCALS: locals})

    def parameters(self, names: Sequence[str]) -> list[str]:
        """The owner first, which `super()` asks for."""
        return sorted(names, key=lambda name: name != self.owner)


class Attributes(ast.NodeTransformer):
    """Variables in the place of the owner's attributes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.owner:
            return ast.copy_location(ast.Name(attribute(self.owner, node.attr), ast.Load()), node)
        return self.generic_visit(node)


def attribute(owner: str, name: str) -> str:
    """The variable that stands for it."""
    return f"_{name}_of_{owner}"


def body_of(statement: ast.stmt) -> list[ast.stmt]:
    return [statement, placed(ast.parse(f"return {LOCALS}()").body[0], statement)]


def call_of(loop: LoopStatement, index: int) -> ast.stmt:
    binding = f"({', '.join(loop.bound)},) = " if loop.bound else ""
    lines = [f"    {binding}{RUNS}.run({index}, locals())"]
    lines += [f"    if {name} is {RUNS}.unbound: del {name}" for name in loop.bound]
    if loop.steps is None:
        return placed(ast.parse("\n".join(["if True:", *lines])).body[0], loop.statement)
    counters = ", ".join(loop.counters)
    made: Any = ast.parse("\n".join(["if True:", f"    {counters} = {RUNS}.counters()", *lines])).body[0]
    made.body[0].value.args = [copy.deepcopy(loop.steps)]
    return placed(made, loop.statement)


def placed(made: ast.stmt, statement: ast.stmt) -> ast.stmt:
    """At the line of the loop."""
    for node in ast.walk(made):
        ast.copy_location(node, statement)
    return made


def split(function: FunctionType) -> LoopSplit | None:
    """None where it has no loop that may be a function of its own, or its text is not known."""
    source = source_of(function) if function.__code__.co_argcount else None
    counts = "range" not in function.__globals__
    if source is None:
        return None
    source = replace(source, definition=with_joins(source.definition, function.__globals__))
    loops = loops_of(source.definition, function.__code__, counts)
    return LoopSplit(source, tuple(loops)) if loops else None
