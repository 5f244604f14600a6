"""Where a function asks of which class exactly something is, as `type(self.rnn) is nn.LSTM` does.

Any use of a class counts as such a question that is not known to be none: one that is missed costs numbers.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping, Set
from types import FunctionType
from typing import Any

from bppsa.fxpasses.environment.trail import content
from bppsa.fxpasses.reroll.outline.reach import within
from bppsa.fxpasses.reroll.outline.source import definition_of, tree_of

OF_ONE_CLASS = {"__dict__", "__bases__", "__mro__", "mro", "__subclasses__"}  # one derived from it has others
# Functions that tell the same of a class and of one derived from it that has its name.
HARMLESS = {isinstance, issubclass, getattr, hasattr, str, repr, print, format}
UNKNOWN = object()


def questions(function: FunctionType, kinds: Set[type]) -> Iterator[int]:
    """The lines in which it may ask whether something is of one of these classes exactly."""
    codes, names = list(within(function.__code__)), names_of(function)
    asking = {"type"} if names["type"] is type and not any("type" in code.co_varnames for code in codes) else set()
    if all({*asking, "__class__"}.isdisjoint(code.co_names) for code in codes):
        return
    above = {
        child: node for part in text_of(function) for node in ast.walk(part) for child in ast.iter_child_nodes(node)
    }
    variables = {name for node in above if asks(node, asking) and (name := variable(value(node, above), above))}
    for node in above:
        if asks(node, asking | variables) and is_question(value(node, above), above, names, kinds):
            yield node.lineno  # type: ignore[attr-defined]


def text_of(function: FunctionType) -> list[ast.AST]:
    """The syntax trees of its statements, or of all lambdas in its line."""
    if function.__name__ != "<lambda>":
        found = definition_of(function)
        return [] if found is None else [*found.body]
    line = function.__code__.co_firstlineno
    return [node for node in ast.walk(tree_of(function)) if isinstance(node, ast.Lambda) and node.lineno == line]


def names_of(function: FunctionType) -> dict[str, Any]:
    closed = zip(function.__code__.co_freevars, map(content, function.__closure__ or ()), strict=True)
    return {**vars(builtins), **function.__globals__, **dict(closed)}


def asks(node: ast.AST, names: Set[str]) -> bool:
    """names: of variables that hold a class, and of the function that gives one."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names


def value(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> ast.AST:
    """The expression whose value is the class: a call of `type`, or what is also given to a variable."""
    user = above.get(node)
    of_type = isinstance(user, ast.Call) and user.func is node and len(user.args) == 1
    if of_type and isinstance(node, ast.Name) and node.id == "type":
        return value(user, above)  # type: ignore[arg-type]
    return value(user, above) if isinstance(user, ast.NamedExpr) else node


def variable(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> str | None:
    """That the class is given to alone."""
    user: Any = node if isinstance(node, ast.NamedExpr) else above.get(node)
    targets = user.targets if isinstance(user, ast.Assign) else [getattr(user, "target", None)]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def is_question(node: ast.AST, above: Mapping[ast.AST, ast.AST], names: Mapping[str, Any], kinds: Set[type]) -> bool:
    user = above.get(node)
    if isinstance(user, (ast.AnnAssign, ast.arg, ast.FunctionDef)) and getattr(user, "value", None) is not node:
        return False  # an annotation
    if not isinstance(node, ast.NamedExpr) and variable(node, above) is not None:
        return False
    return any(other is UNKNOWN or (isinstance(other, type) and other in kinds) for other in others(node, user, names))


def others(node: ast.AST, user: ast.AST | None, names: Mapping[str, Any]) -> list[Any]:
    """What the class is compared with; UNKNOWN where that is not known."""
    if isinstance(user, ast.Compare):
        return values([side for side in (user.left, *user.comparators) if side is not node], names)
    if isinstance(user, ast.Subscript) and user.slice is node:
        return values([user.value], names)
    if isinstance(user, ast.Attribute):
        return [UNKNOWN] if user.attr in OF_ONE_CLASS else []
    if isinstance(user, ast.Call):
        return compared_by(node, user, names)
    return [] if isinstance(user, ast.FormattedValue) else [UNKNOWN]


def compared_by(node: ast.AST, call: ast.Call, names: Mapping[str, Any]) -> list[Any]:
    if call.func is node:  # makes an object of it
        return []
    called = value_of(call.func, names)
    raises = isinstance(called, type) and issubclass(called, BaseException)
    if raises or any(called is each for each in HARMLESS):
        return []
    table = value_of(call.func.value, names) if isinstance(call.func, ast.Attribute) else UNKNOWN
    return list(table) if isinstance(table, dict) else [UNKNOWN]


def values(nodes: list[ast.expr], names: Mapping[str, Any]) -> list[Any]:
    """Of these expressions, and of what is in them."""
    found: list[Any] = []
    for node in nodes:
        one = value_of(node, names)
        found += list(one) if isinstance(one, (list, tuple, set, frozenset, dict)) else [one]
    return found


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        return UNKNOWN if owner is UNKNOWN else inspect.getattr_static(owner, node.attr, UNKNOWN)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return tuple(value_of(each, names) for each in node.elts)
    return None if isinstance(node, ast.Constant) else UNKNOWN
