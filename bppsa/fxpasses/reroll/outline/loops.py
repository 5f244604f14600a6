"""What a loop of a function reads, binds and changes, told by its text."""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bppsa.fxpasses.reroll.outline.joins import JoinedLoop

Statement = ast.For | ast.While | JoinedLoop
# What ends or leaves the function, or binds what is not the function's.
OUTSIDE = (
    *(ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Global, ast.Nonlocal),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Delete),
)
RANGE = ("start", "stop", "step")
AROUND_RANGE = {"reversed", "enumerate", "list", "tuple"}
LOOKS_AROUND = {"locals", "vars", "eval", "exec", "dir", "globals"}


@dataclass(frozen=True)
class LoopStatement:
    """names: variables of the function in it; bound: those that it may bind and that are read behind it; written: those
    whose tensors it may change in place, as its text tells; rebound: those that it may bind, whose tensors what it
    calls may change; attributes: of the owner, where it looks at nothing else of it, and changed: those of them whose
    tensors it may change. steps: the range it goes over, which the function around it makes, as it
    may ask a tensor for a value; alone: the statement, that range by the names in `counters`."""

    statement: Statement
    alone: Statement
    steps: ast.Call | None
    names: tuple[str, ...]
    bound: tuple[str, ...]
    written: frozenset[str]
    rebound: frozenset[str]
    attributes: tuple[str, ...] | None
    changed: frozenset[str]

    @property
    def counters(self) -> tuple[str, ...]:
        """Variables of ours, of what the range begins with, ends before, and goes on by."""
        return counters_of(self.statement) if self.steps is not None else ()


def loops_of(definition: ast.FunctionDef, code: types.CodeType, counts: bool = True) -> list[LoopStatement]:
    """The outermost ones that may be functions of their own. counts: whether `range` is Python's."""
    if LOOKS_AROUND & set(code.co_names) or any(isinstance(node, ast.Nonlocal) for node in ast.walk(definition)):
        return []
    closures = list(closures_in(definition))
    return [loop_of(each, definition, code, counts) for each in outermost(definition.body) if is_alone(each, closures)]


def is_alone(statement: Statement, closures: Sequence[ast.AST]) -> bool:
    """closures: of the function, which go on seeing its variables as these change."""
    bound = {name for node in ast.walk(statement) for name in bound_by(node)}
    if any(isinstance(node, OUTSIDE) for node in ast.walk(statement)):
        return False
    if any(bound & free_in(closure) for closure in closures):
        return False
    return not any(is_private(name) for name in (*names_in(statement), *attributes_in(statement)))


def closures_in(definition: ast.FunctionDef) -> Iterator[ast.AST]:
    """Functions within it, and generators that are not used up where they stand."""
    used = {id(each) for node in ast.walk(definition) if isinstance(node, ast.Call) for each in node.args}
    for node in ast.walk(definition):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and node is not definition
        if is_function or (isinstance(node, ast.GeneratorExp) and id(node) not in used):
            yield node


def free_in(closure: ast.AST) -> set[str]:
    """Names that it looks up around itself."""
    own = {name for node in ast.walk(closure) for name in bound_by(node)}
    return names_in(closure) - own - {node.arg for node in ast.walk(closure) if isinstance(node, ast.arg)}


def is_private(name: str) -> bool:
    """Whether it is spelled with its class's name."""
    return name.startswith("__") and not name.endswith("__")


def attributes_in(statement: Statement) -> set[str]:
    return {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}


def outermost(body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, (ast.For, ast.While, JoinedLoop)):
            yield statement
        elif isinstance(statement, ast.If):
            yield from outermost([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.With):
            yield from outermost(statement.body)


def range_of(statement: Statement) -> ast.Call | None:
    """The range that a loop goes over, where that is computed."""
    loop = loop_in(statement)
    node = loop.iter if isinstance(loop, ast.For) else None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "range":
            fixed = all(isinstance(each, ast.Constant) for each in node.args)
            binds = any(isinstance(each, (ast.NamedExpr, ast.Starred)) for each in ast.walk(node))
            return None if fixed or binds else node
        node = node.args[0] if node.func.id in AROUND_RANGE and len(node.args) == 1 else None
    return None


def counters_of(statement: Statement) -> tuple[str, ...]:
    return tuple(f"_bppsa_{part}_{statement.lineno}_{statement.col_offset}" for part in RANGE)


def counted(statement: Statement, steps: ast.Call) -> Statement:
    """The loop over the range that its counters give."""
    names: list[ast.expr] = [ast.copy_location(ast.Name(name, ast.Load()), steps) for name in counters_of(statement)]
    made = ast.copy_location(ast.Call(steps.func, names, []), steps)
    return copy.deepcopy(statement, {id(steps): made})


def loop_of(
    original: Statement, definition: ast.FunctionDef, code: types.CodeType, counts: bool = True
) -> LoopStatement:
    local = {*code.co_varnames, *code.co_cellvars}
    local |= original.joined if isinstance(original, JoinedLoop) else set()
    steps = range_of(original) if counts and "range" not in {*local, *code.co_freevars} else None
    statement = original if steps is None else counted(original, steps)
    own = code.co_varnames[: min(code.co_argcount, 1)] if "super" in names_in(statement) else ()
    names = names_in(statement) & local | {*own}  # super() takes the first argument
    read = {name for node in ast.walk(definition) if is_behind(node, statement) for name in names_in(node)}
    bound = {name for node in ast.walk(statement) for name in bound_by(node)} & local
    owner = code.co_varnames[0] if code.co_argcount else ""
    behind = bound & (read | set(code.co_cellvars))
    counters = () if steps is None else counters_of(original)
    return LoopStatement(
        original,
        statement,
        steps,
        (*sorted(names - (begun_by(statement) - behind)), *counters),
        tuple(sorted(behind)),
        frozenset(name for node in ast.walk(statement) for name in written_by(node)) & names,
        frozenset(bound & names),
        attributes_of(owner, statement, bound),
        frozenset(name for node in ast.walk(statement) for name in changed_by(node, owner)),
    )


def begun_by(statement: Statement) -> set[str]:
    """Variables that it gives a value before it reads them: what they were before is nothing to it."""
    loop = loop_in(statement)
    begun = set(statement.lists) if isinstance(statement, JoinedLoop) else set()
    if isinstance(loop, ast.For):
        targets = {name for node in ast.walk(loop.target) for name in bound_by(node)}
        begun |= targets.difference(*map(names_in, (loop.iter, *loop.orelse)))
    return begun


def loop_in(statement: Statement) -> ast.For | ast.While:
    return statement.loop if isinstance(statement, JoinedLoop) else statement


def is_behind(node: ast.AST, statement: Statement) -> bool:
    place = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    return place >= (statement.end_lineno or 0, statement.end_col_offset or 0)


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        name for each in ast.walk(node) for name in bound_by(each)
    }


def bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return {node.name} if node.name else set()
    return {node.rest} if isinstance(node, ast.MatchMapping) and node.rest else set()


def written_by(node: ast.AST) -> set[str]:
    """Variables whose tensors a node may change in place."""
    return root_of(target_of(node))


def changed_by(node: ast.AST, owner: str) -> set[str]:
    """The same for attributes of the owner: `out` of `self.out[t] = h`."""
    target = target_of(node)
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Call)):
        inner = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Attribute) and isinstance(inner, ast.Name):
            return {target.attr} if inner.id == owner else set()
        target = inner
    return set()


def target_of(node: ast.AST) -> ast.AST | None:
    """What a node may change in place, as it is written."""
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
    return node.func if is_method else None  # type: ignore[attr-defined]


def root_of(node: ast.AST | None) -> set[str]:
    """The variable that an expression begins with: `out` of `out[:, t].view(-1)`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def attributes_of(owner: str, statement: Statement, bound: set[str]) -> tuple[str, ...] | None:
    seen = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id in (owner, "super")]
    looks = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute) and node.value in seen]
    if not seen or owner in bound or len(looks) < len(seen) or any(not isinstance(n.ctx, ast.Load) for n in looks):
        return () if not seen else None
    return tuple(sorted({node.attr for node in looks}))
