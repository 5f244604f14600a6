"""Which functions a function may call, as far as the names that it looks up tell."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from bppsa.fxpasses.environment.libraries import homes_of_class, is_library
from bppsa.fxpasses.environment.trail import content

DEPTH = 4  # of functions that call each other


def reached(function: Any, kinds: Sequence[type], depth: int = DEPTH) -> Iterator[FunctionType]:
    """A function of the user's, and what it finds under the names that it looks up: in its module, in others that it
    names, or as attributes of the classes, of which the first is its owner's."""
    while isinstance(function, (MethodType, functools.partial)):
        function = function.__func__ if isinstance(function, MethodType) else function.func
    if depth == 0 or not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():  # as of a decorator, which calls what it was given
        yield from reached(content(cell), kinds, depth - 1)
    if not is_of_user(function, kinds):
        return
    yield function
    for code in within(function.__code__):
        for found in named(code, function.__globals__, kinds):
            if found is not function:
                yield from reached(found, kinds, depth - 1)


def is_of_user(function: FunctionType, kinds: Sequence[type]) -> bool:
    """Whether no library has it, other than the one that the first of the classes is of."""
    package = (function.__globals__.get("__name__") or "").partition(".")[0]
    return not is_library(package) or any(package in homes_of_class(kind) for kind in kinds[:1])


def named(code: CodeType, names: dict[str, Any], kinds: Sequence[type]) -> Iterator[Any]:
    """Global names that the code looks up, attributes of modules among them, and others as they would be of `self`."""
    last: Any = None
    for instruction in dis.get_instructions(code):
        before, last = last, None
        if instruction.opname == "LOAD_GLOBAL":
            last = names.get(instruction.argval)
            yield last
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(before, ModuleType):
            last = vars(before).get(instruction.argval)
            yield last
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            for space in (vars(base) for kind in kinds for base in kind.__mro__):
                found = space.get(instruction.argval)
                yield found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


def within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from within(constant)
