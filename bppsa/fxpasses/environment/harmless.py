"""Whether a function of the user may be run one time more: it handles numbers and tensors, and changes nothing."""

from __future__ import annotations

import builtins
import dis
from collections import OrderedDict, defaultdict, deque
from collections.abc import Set
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.names import codes, global_names, names_of_objects

# Built-in functions whose results depend on their arguments, and that change at most a container in them.
BUILTINS = {
    getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "getattr", "hasattr", "hash"),
        *("hex", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "oct", "ord", "pow", "repr", "round"),
        *("sorted", "sum", "__build_class__", "setattr", "locals"),
    )
}
CONTAINERS = {
    *(list, dict, tuple, set, frozenset, str, bytes, int, float, complex, slice, range),
    *(deque, defaultdict, OrderedDict),
}
ERRORS = [each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, Exception)]
STORES = {"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR", "IMPORT_NAME"}


def is_harmless(function: Any, known: set[Any]) -> bool:
    """Whether its code handles nothing but numbers, tensors and functions of these. known: functions that were looked
    at before."""
    if not isinstance(function, FunctionType):
        return False
    if function in known:
        return True
    known.add(function)
    instructions = [i for inner in codes(function.__code__) for i in dis.get_instructions(inner)]
    if any(instruction.opname in STORES for instruction in instructions):
        return False
    names = {**vars(builtins), **function.__globals__}
    cells = [held for held in map(trail.content, function.__closure__ or ()) if held is not trail.MISSING]
    read = [*cells, *(names[name] for name in global_names(function.__code__) if name in names)]
    named = set(names_of_objects(function.__code__))
    return all(is_numeric(x) or is_function(x) or is_harmless(x, known) or holds_numbers(x, named) for x in read)


def holds_numbers(value: Any, names: Set[str]) -> bool:
    """Whether it is a torch.autograd.Function, as a backward may name its own for a number of it, and all that it has
    by these names are numbers and tensors."""
    if not (isinstance(value, type) and issubclass(value, torch.autograd.Function)):
        return False
    users = [vars(base) for base in value.__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins")]
    return all(is_numeric(space[name]) for space in users for name in names & space.keys())


def is_numeric(value: Any) -> bool:
    """Whether it is a number, a tensor, or a tuple of these."""
    if isinstance(value, tuple):
        return all(map(is_numeric, value))
    return isinstance(value, (*SIMPLE, Tensor)) and not isinstance(value, nn.Parameter)


def is_function(value: Any) -> bool:
    """Whether it is a function of Python's own or of torch's, or a module or class of such."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    if any(value is known for known in (*BUILTINS, *CONTAINERS, *ERRORS)):
        return True
    return callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] in ("torch", "math", "_operator")
