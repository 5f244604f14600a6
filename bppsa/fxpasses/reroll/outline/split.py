"""The functions that are made of one with loops: itself with calls in their places, and the loops."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, TypeVar

from bppsa.fxpasses.reroll.outline.joins import with_joins
from bppsa.fxpasses.reroll.outline.loops import LOOKS_AROUND, LoopStatement, loops_of
from bppsa.fxpasses.reroll.outline.source import FunctionSource, source_of

N = TypeVar("N", bound=ast.AST)
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
        definition = CallsInTurn().visit(copy.deepcopy(self.source.definition, memo))
        return self.source.changed(definition.body, {RUNS: runs})

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


class CallsInTurn(ast.NodeTransformer):
    """Asks `runs` at each call for what is to be called, which may have loops of its own."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not is_builtin(node.func) and not is_ours(node.func):
            asked = ast.Attribute(ast.Name(RUNS, ast.Load()), "called", ast.Load())
            node.func = placed(ast.Call(asked, [node.func], []), node.func)
        return node


def is_builtin(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and hasattr(builtins, node.id)


def is_ours(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == RUNS


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


def placed(made: N, where: ast.AST) -> N:
    """At the line of the loop, or of another expression that it holds already."""
    for node in ast.walk(made):
        if not hasattr(node, "lineno") or isinstance(made, ast.stmt):
            ast.copy_location(node, where)
    return made


def split(function: FunctionType) -> LoopSplit | None:
    """None where its text is not known, or what it calls cannot be told from what it looks at."""
    code = function.__code__
    source = source_of(function) if code.co_argcount and not LOOKS_AROUND & set(code.co_names) else None
    counts = "range" not in function.__globals__
    if source is None:
        return None
    source = replace(source, definition=with_joins(source.definition, function.__globals__))
    return LoopSplit(source, tuple(loops_of(source.definition, code, counts)))
