"""Where a function asks of which class exactly something is, as `type(self.rnn) is nn.LSTM` does."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Set
from types import FunctionType
from typing import Any

from bppsa.fxpasses.environment.trail import content

ASKS = {"type", "__class__"}
OF_ONE_CLASS = {"__dict__", "__bases__"}  # attributes of a class that one derived from it has not
UNKNOWN = object()


def questions(function: FunctionType, kinds: Set[type]) -> Iterator[int]:
    """The lines in which it asks whether something is of one of these classes exactly."""
    if ASKS.isdisjoint(function.__code__.co_names):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # no text, or that of a lambda within a line
        return
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and asks(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = names_of(function)
    for node in ast.walk(tree):
        if any(answer is UNKNOWN or answer in kinds for answer in answers(node, names, assigned)):
            yield function.__code__.co_firstlineno + node.lineno - 1  # type: ignore[attr-defined]


def names_of(function: FunctionType) -> dict[str, Any]:
    closed = zip(function.__code__.co_freevars, map(content, function.__closure__ or ()), strict=True)
    return {**vars(builtins), **function.__globals__, **dict(closed)}


def asks(node: ast.AST, assigned: Set[str]) -> bool:
    """Whether its value is the class of something. assigned: variables that have such a value."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    return isinstance(node, ast.Name) and node.id in assigned


def answers(node: ast.AST, names: Mapping[str, Any], assigned: Set[str]) -> list[Any]:
    """What the node compares the class of something with; UNKNOWN stands for what only a call can tell."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asked = [side for side in sides if not asks(side, assigned)]
        return values(asked, names) if len(asked) < len(sides) else []
    if isinstance(node, ast.Subscript):
        return values([node.value], names) if asks(node.slice, assigned) else []
    if isinstance(node, ast.Attribute):
        return [UNKNOWN] if node.attr in OF_ONE_CLASS and asks(node.value, assigned) else []
    if isinstance(node, ast.Call) and any(asks(each, assigned) for each in node.args):
        if isinstance(node.func, ast.Attribute):  # of a table, such as `get`
            return values([node.func.value], names)
        return [UNKNOWN] if isinstance(node.func, ast.Name) and node.func.id == "super" else []
    return []


def values(nodes: list[ast.expr], names: Mapping[str, Any]) -> list[Any]:
    """Of these expressions, and of what is in them."""
    found = []
    for node in nodes:
        value = value_of(node, names)
        found += list(value) if isinstance(value, (list, tuple, set, frozenset, dict)) else [value]
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
