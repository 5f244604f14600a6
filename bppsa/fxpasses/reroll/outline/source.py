"""The syntax tree of a function, and functions that are made of parts of it."""

from __future__ import annotations
import __future__

import ast
import linecache
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

NamedLine = tuple[str, int]  # name and line
ParsedFile = tuple[ast.Module, Mapping[NamedLine, list[ast.FunctionDef]], Mapping[NamedLine, list[types.CodeType]]]
FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


@dataclass(frozen=True)
class FunctionSource:
    """cls: the name of the class that it is in, which `super()` asks for."""

    function: types.FunctionType
    definition: ast.FunctionDef
    cls: str | None

    def make(self, parameters: Sequence[str], body: Sequence[ast.stmt], held: Mapping[str, Any]) -> types.FunctionType:
        """A function with this body, in the function's place. held: what it closes over beside what that does."""
        definition = ast.FunctionDef(self.definition.name, taking(parameters), [*body], [])
        return self.bound(self.compiled(ast.copy_location(definition, body[0]), tuple(held)), held)

    def changed(self, body: Sequence[ast.stmt], held: Mapping[str, Any]) -> types.FunctionType:
        """The function with another body."""
        given = self.definition
        definition = ast.FunctionDef(given.name, given.args, [*body], [], given.returns)
        made = self.bound(self.compiled(ast.copy_location(definition, given), tuple(held)), held)
        made.__defaults__, made.__kwdefaults__ = self.function.__defaults__, self.function.__kwdefaults__
        made.__qualname__ = self.function.__qualname__
        return made

    def bound(self, code: types.CodeType, held: Mapping[str, Any]) -> types.FunctionType:
        own = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
        cells = own | {name: types.CellType(value) for name, value in held.items()}
        closure = tuple(cells[name] for name in code.co_freevars)
        return types.FunctionType(code, self.function.__globals__, self.function.__name__, None, closure)

    def compiled(self, definition: ast.FunctionDef, held: tuple[str, ...] = ()) -> types.CodeType:
        """Within a function that has the names it closes over, and the class that it is in."""
        code = self.function.__code__
        names = [name for name in (*code.co_freevars, *held) if name != "__class__"]
        inner: list[ast.stmt] = [definition]
        if self.cls is not None:
            inner = [ast.ClassDef(self.cls, [], [], inner, [])]
            if self.cls not in names:  # the class's own name is a global one, as it was
                inner.insert(0, ast.Global([self.cls]))
        tree = ast.Module([ast.FunctionDef("around", taking(names), inner, [])], [])
        for node in ast.walk(tree):
            if "type_params" in node._fields and not hasattr(node, "type_params"):
                node.type_params = []  # type: ignore[attr-defined]  # of Python 3.12
        flags = code.co_flags & FUTURES
        whole = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", flags, dont_inherit=True)
        return code_within(whole, definition.name)


def taking(names: Sequence[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def code_within(code: types.CodeType, name: str) -> types.CodeType:
    """The innermost code of the functions around a definition."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    found = [each for each in inner if each.co_name == name and code.co_name != "<module>"]
    return found[0] if found else code_within(inner[0], name)


def source_of(function: types.FunctionType) -> FunctionSource | None:
    """None where the text is not that of the function, as of a decorator's, or of one that was made at run time."""
    definition = None if hasattr(function, "__wrapped__") else definition_of(function)
    if definition is None:
        return None
    *_, around, _ = ["<locals>", *function.__qualname__.split(".")]
    return FunctionSource(function, definition, None if around == "<locals>" else around)


def definition_of(function: types.FunctionType) -> ast.FunctionDef | None:
    """The text of a function's own code; None where its file has another text by now, or is none."""
    own = function.__code__
    place = own.co_name, own.co_firstlineno
    _, definitions, codes = file_of(function)
    found, compiled = definitions.get(place, []), codes.get(place, [])
    return found[0] if len(found) == 1 == len(compiled) and is_same(compiled[0], own) else None


def tree_of(function: types.FunctionType) -> ast.Module:
    """The text of the file that it is in."""
    return file_of(function)[0]


def file_of(function: types.FunctionType) -> ParsedFile:
    own = function.__code__
    text = "".join(linecache.getlines(own.co_filename, function.__globals__))
    return parsed(text, own.co_filename, own.co_flags & FUTURES)


@lru_cache(maxsize=8)
def parsed(text: str, file: str, flags: int) -> ParsedFile:
    """The tree of a file, which nobody changes, and its functions and their codes by name and line; nothing where it is
    no text of Python's."""
    try:
        tree = ast.parse(text)
        whole = compile(tree, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return ast.Module([], []), {}, {}
    definitions: dict[NamedLine, list[ast.FunctionDef]] = {}
    codes: dict[NamedLine, list[types.CodeType]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            definitions.setdefault(place_of(node), []).append(node)
    for code in codes_in(whole):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return tree, definitions, codes


def place_of(definition: ast.FunctionDef) -> NamedLine:
    return definition.name, min([definition.lineno, *(each.lineno for each in definition.decorator_list)])


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from codes_in(each)


def is_same(code: types.CodeType, other: types.CodeType) -> bool:
    """The file may have been edited since."""
    described = [
        (each.co_code, each.co_names, each.co_varnames, each.co_freevars, each.co_cellvars, constants(each))
        for each in (code, other)
    ]
    return described[0] == described[1]


def constants(code: types.CodeType) -> list[Any]:
    return [(type(each), repr(each)) for each in code.co_consts if not isinstance(each, types.CodeType)]
