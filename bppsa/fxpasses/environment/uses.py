"""What a function does with a variable: whether it looks up attributes of the object there, or hands it on."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any

from torch import nn

from bppsa.fxpasses.environment.names import KEPT, OF_OBJECTS, PASSED_OVER, codes, instructions_of

# Methods of each module that may give the module itself, or call it.
GIVES_ITSELF = frozenset(name for name, value in vars(nn.Module).items() if callable(value))
BINDS = {"STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF", "LOAD_CLOSURE", "MAKE_CELL"}


@functools.lru_cache(maxsize=KEPT)
def lets_go(code: types.CodeType, name: str) -> bool:
    """Whether the code, or a function within it, may do something else with the variable than look up attributes."""
    return any(lets_go_alone(inner, name) for inner in codes(code))


def lets_go_alone(code: types.CodeType, name: str) -> bool:
    if "locals" in code.co_names or ("super" in code.co_names and not GIVES_ITSELF.isdisjoint(code.co_names)):
        return True
    instructions = [each for each in instructions_of(code) if each.opname not in PASSED_OVER]
    for each, behind in zip(instructions, [*instructions[1:], None], strict=True):
        if each.opcode not in dis.haslocal and each.opcode not in dis.hasfree:
            continue
        variables = each.argval if isinstance(each.argval, tuple) else (each.argval,)  # of two ops in one
        if name not in variables or each.opname in BINDS:
            continue
        looks = behind is not None and behind.opname in OF_OBJECTS and behind.argval not in GIVES_ITSELF
        if name in variables[:-1] or not looks:
            return True
    return False


def gives_away(value: Any) -> bool:
    """Whether what a class has under a name may do something else with its object than look up attributes."""
    if isinstance(value, property):
        return any(map(gives_away, filter(None, (value.fget, value.fset, value.fdel))))
    if isinstance(value, (staticmethod, classmethod)):
        return False
    if not isinstance(value, types.FunctionType):
        return hasattr(type(value), "__get__")
    code = value.__code__
    if not code.co_argcount:
        return bool(code.co_flags & inspect.CO_VARARGS)
    return lets_go(code, code.co_varnames[0])
