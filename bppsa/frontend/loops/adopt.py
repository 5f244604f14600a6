"""Which modules of a clone are looked at: those whose forward, or a function that it names, has a loop."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from bppsa.codegen.cpu import build
from bppsa.frontend.loops.classes import Looped, leading, prepare
from bppsa.frontend.loops.state import LoopState
from bppsa.frontend.rewritten import kind_of, put_before, take_away
from bppsa.frontend.state import TABLES, state_of
from bppsa.fxpasses.environment.libraries import is_library, is_users_name
from bppsa.fxpasses.environment.trail import content
from bppsa.fxpasses.reroll.log.lines import loops

DEPTH = 4  # of functions that call each other
FOLDS = {"reduce", "accumulate"}  # functools' and itertools', which loop over time for their caller


def adopt_loops(root: nn.Module) -> None:
    """Give the modules with a loop the class that looks at their calls."""
    if build.available() is not None:
        return
    for path, module in root.named_modules():
        take_away(module, Looped)  # of a compiled model within this one
        if has_loop(module):
            gives_way = not forward_loops(module)
            put_before(module, Looped)
            prepare(type(module))
            state_of(module).loops = LoopState(path, gives_way=gives_way)


def has_loop(module: nn.Module) -> bool:
    """Whether its forward, or another method that a user may call, reaches one."""
    kind = kind_of(module)
    if kind.__module__.partition(".")[0] == "torch":
        return False
    return forward_loops(module) or bool(leading(kind))


def forward_loops(module: nn.Module) -> bool:
    if getattr(kind_of(module), "forward", None) is nn.Module.forward:
        return False
    kinds = [kind_of(module), *kinds_of_objects(module)]
    functions = [module.forward, *(value for name, value in vars(module).items() if name not in TABLES)]
    found = (each for function in functions for each in reached(function, kinds, DEPTH))
    codes = (code for each in found for code in within(each.__code__))
    return any(loops(code) or not FOLDS.isdisjoint(code.co_names) for code in codes)


def kinds_of_objects(module: nn.Module) -> set[type]:
    """Classes of the user's of which it holds objects."""
    found = {type(value) for name, value in vars(module).items() if name not in TABLES}
    return {kind for kind in found if is_users_name(kind.__module__)}


def reached(function: Any, kinds: Sequence[type], depth: int) -> Iterator[FunctionType]:
    """A function of the user's, and those that it finds under the names that it looks up: in its module, in
    others that it names, or as attributes of the classes, of which the first is its owner's."""
    while isinstance(function, (MethodType, functools.partial)):
        function = function.__func__ if isinstance(function, MethodType) else function.func
    if depth == 0 or not isinstance(function, FunctionType):
        return
    for cell in function.__closure__ or ():  # as of a decorator, which calls what it was given
        yield from reached(content(cell), kinds, depth - 1)
    package = (function.__globals__.get("__name__") or "").partition(".")[0]
    if is_library(package) and package != kinds[0].__module__.partition(".")[0]:
        return
    yield function
    for code in within(function.__code__):
        for found in named(code, function.__globals__, kinds):
            if found is not function:
                yield from reached(found, kinds, depth - 1)


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
