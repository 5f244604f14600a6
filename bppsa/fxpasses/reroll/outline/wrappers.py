"""A decorator's function around another one, with a third in that one's place."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType

from bppsa.fxpasses.environment.trail import content
from bppsa.fxpasses.reroll.outline.loops import LOOKS_AROUND
from bppsa.fxpasses.reroll.outline.source import definition_of, tree_of

DECORATORS = 4  # the most, one within another
NAMES = {"__name__", "__qualname__", "__module__", "__doc__"}


def wrapped_codes(function: FunctionType, depth: int = DECORATORS) -> Iterator[CodeType]:
    """Its code, and that of the functions that it closes over."""
    yield function.__code__
    for each in closed_over(function).values() if depth else ():
        yield from wrapped_codes(each, depth - 1)


def closed_over(function: FunctionType) -> dict[str, FunctionType]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: content(cell) for name, cell in cells}
    return {name: each for name, each in found.items() if isinstance(each, FunctionType) and each is not function}


def called_only(function: FunctionType) -> dict[str, FunctionType]:
    """The functions that it closes over and does nothing with but call, so that another may stand there."""
    found = closed_over(function)
    definition = definition_of(function) if found else None
    if definition is None or LOOKS_AROUND & set(function.__code__.co_names):
        return {}
    body = [node for statement in definition.body for node in ast.walk(statement)]
    harmless = {id(node.func) for node in body if isinstance(node, ast.Call)}
    harmless |= {id(node.value) for node in body if isinstance(node, ast.Attribute) and is_name(node)}
    bound_anew = {name for node in ast.walk(tree_of(function)) if isinstance(node, ast.Nonlocal) for name in node.names}
    seen = {node.id for node in body if isinstance(node, ast.Name) and id(node) not in harmless}
    return {name: each for name, each in found.items() if name not in seen | bound_anew}


def is_name(node: ast.Attribute) -> bool:
    return node.attr in NAMES and isinstance(node.ctx, ast.Load)


def rewrapped(function: FunctionType, others: Mapping[str, FunctionType]) -> FunctionType:
    """The function, which closes over others under some names, and shares all else with what it was."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = tuple(CellType(others[name]) if name in others else cell for name, cell in cells)
    code, names = function.__code__, function.__globals__
    made = FunctionType(code, names, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__dict__.update(function.__dict__)
    return made
