"""Lists that a loop fills and one `torch.stack` or `torch.cat` behind it reads: the join becomes a part of the loop.

A list of a tensor for each step would have to be handed out item by item, by a copy of each. Joined within the loop it
is what the scan gives as it is.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

JOINS = {"stack", "cat", "concat", "concatenate"}
# What a join's result may go through before the next statement's join is made: it changes no tensor.
VIEWS = {"transpose", "permute", "movedim", "unsqueeze", "squeeze", "flatten", "view", "reshape", "contiguous", "size"}
# What may leave out a part of it, or do it more than once.
MAY_SKIP = (ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
READERS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr


class JoinedLoop(ast.If):
    """`if True:` with the lists as they begin, the loop, and the joins, each a variable of ours."""

    @property
    def loop(self) -> ast.For | ast.While:
        return next(each for each in self.body if isinstance(each, (ast.For, ast.While)))

    @property
    def lists(self) -> set[str]:
        return set().union(*map(bound_in, self.body[: self.body.index(self.loop)]))

    @property
    def joined(self) -> set[str]:
        return set().union(*map(bound_in, self.body[self.body.index(self.loop) + 1 :]))


def with_joins(definition: ast.FunctionDef, names: dict[str, Any]) -> ast.FunctionDef:
    """The function, with such joins in its loops. names: what its code finds under global names."""
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(definition)):
        return definition
    made = copy.deepcopy(definition)
    aliases = {name for name, value in names.items() if value is torch} - bound_in(made)
    for body in blocks(made):
        for loop in [each for each in body if isinstance(each, (ast.For, ast.While))]:
            join_behind(loop, body, made, aliases)
    return made


def bound_in(node: ast.AST) -> set[str]:
    """Variables that it gives a value, and parameters."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def blocks(definition: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """The blocks of a function that run once in a call at most."""
    todo = [definition.body]
    while todo:
        body = todo.pop()
        yield body
        for statement in body:
            if isinstance(statement, ast.If):
                todo += [statement.body, statement.orelse]
            elif isinstance(statement, ast.With):
                todo.append(statement.body)


def join_behind(
    loop: ast.For | ast.While, body: list[ast.stmt], definition: ast.FunctionDef, aliases: set[str]
) -> None:
    """Puts the loop and the joins behind it together, in the body's place of the loop."""
    at = body.index(loop)
    lists, joins = [], []
    for statement in body[at + 1 :]:
        found = list(joins_in(statement, aliases)) if isinstance(statement, READERS) else []
        for call in found:
            name = call.args[0].id  # type: ignore[attr-defined]
            if not is_only_filled(name, loop, definition, call) or calls_before(call, statement, found):
                continue
            variable = f"_bppsa_joined_{call.lineno}_{call.col_offset}"
            InPlaceOf(call, ast.copy_location(ast.Name(variable, ast.Load()), call)).visit(statement)
            lists.append(ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load())))
            joins.append(ast.Assign([ast.Name(variable, ast.Store())], call))
        if not found or not binds_names(statement) or any(is_other(each, found) for each in ast.walk(statement)):
            break
    if joins:
        for made in (*lists, *joins):
            for node in ast.walk(made):
                ast.copy_location(node, loop)
        whole = JoinedLoop(ast.copy_location(ast.Constant(True), loop), [*lists, loop, *joins], [])
        body[at] = ast.copy_location(whole, loop)


class InPlaceOf(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, node: ast.AST, new: ast.AST) -> None:
        self.node, self.new = node, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.node else self.generic_visit(node)


def joins_in(statement: ast.stmt, aliases: set[str]) -> Iterator[ast.Call]:
    """Calls such as `torch.stack(out, dim=1)`, of a variable and numbers, that the statement makes whatever happens."""
    for node in unconditional(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in JOINS:
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id in aliases
            others = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
            fixed = all(
                isinstance(inner, (ast.Constant, ast.UnaryOp, ast.USub)) for o in others for inner in ast.walk(o)
            )
            if of_torch and fixed and node.args and isinstance(node.args[0], ast.Name):
                yield node


def unconditional(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, MAY_SKIP):
        for child in ast.iter_child_nodes(node):
            yield from unconditional(child)


def is_only_filled(name: str, loop: ast.stmt, definition: ast.FunctionDef, join: ast.Call) -> bool:
    """Whether the variable begins as an empty list of its own, and only the loop and the join read it."""
    within = {id(node) for node in (*ast.walk(loop), join.args[0])}
    outside = [n for n in ast.walk(definition) if isinstance(n, ast.Name) and n.id == name and id(n) not in within]
    begun = [target for target in empty_lists(definition) if target.id == name]
    return len(outside) == len(begun) == 1 and outside[0] is begun[0]


def empty_lists(definition: ast.FunctionDef) -> Iterator[ast.Name]:
    """Targets of assignments that are empty lists from then on, each its own."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from empty_ones(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from empty_ones(node.target, node.value)


def empty_ones(target: ast.expr, value: ast.expr) -> Iterator[ast.Name]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from empty_ones(one, other)
    elif isinstance(target, ast.Name) and isinstance(value, ast.List) and not value.elts:
        yield target


def binds_names(statement: ast.stmt) -> bool:
    """Whether it binds variables, and nothing else."""
    if not isinstance(statement, ast.Assign):
        return False
    return all(isinstance(each, (ast.Name, ast.Tuple, ast.Store)) for t in statement.targets for each in ast.walk(t))


def calls_before(call: ast.Call, statement: ast.stmt, joins: Sequence[ast.Call]) -> bool:
    """Whether something else is called before it, that might change what it reads."""
    here = call.lineno, call.col_offset
    others = (each for each in ast.walk(statement) if is_other(each, joins))
    return any((each.end_lineno or 0, each.end_col_offset or 0) <= here for each in others)  # type: ignore[attr-defined]


def is_other(node: ast.AST, joins: Sequence[ast.Call]) -> bool:
    """Whether it calls or binds anything beside joins and views."""
    if isinstance(node, ast.Call):
        is_view = isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS
        return not is_view and not any(node is join for join in joins)
    return isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda))
