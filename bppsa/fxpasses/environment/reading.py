"""Which attributes of a module the code that was met may read: those that it names, or all."""

from __future__ import annotations

import functools
import types
from collections.abc import Set
from typing import Any, Generic, NamedTuple, Protocol

import torch
from torch import nn

from bppsa.fxpasses.environment.names import BY_STRING, FROM_TEXT, PATTERNS
from bppsa.fxpasses.environment.trail import content

# Who names one of these may read attributes that no code names.
COMPUTES = (
    BY_STRING
    | FROM_TEXT
    | {
        "setattr",
        "delattr",
        "vars",
        "dir",
        "format",
        "format_map",
        "asdict",
        "astuple",
        "fields",
        "getmembers",
        PATTERNS,
    }
    | {"__dict__", "__getattribute__", "__getstate__", "__reduce_ex__", "__self__", "_getframe", "currentframe", "gc"}
)
FIND_MODULES = {"import_module", "__import__"}  # a Python module by a name that may be computed
# Packages whose code reads attributes of a user's object at most by names that its own kind has.
KNOWN = {
    *("torch", "bppsa", "numpy", "einops", "builtins", "math", "cmath", "functools", "itertools", "operator"),
    *("collections", "typing", "typing_extensions", "types", "abc", "enum", "contextlib", "contextvars", "numbers"),
    *("time", "random", "warnings", "os", "sys", "logging", "threading", "weakref", "re", "array", "ctypes"),
}
# Classes whose own code reads of a module what each has, and calls what a user has named.
PURE = {object, nn.Module, torch.autograd.Function, *torch.autograd.Function.__mro__, Generic, Protocol}
CONTAINERS = {nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict}
OF_EACH = frozenset(nn.Module().__dict__)  # attributes that PyTorch's own code reads
MACHINERY = frozenset({"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"})  # run by a call of a module


class Holder(NamedTuple):
    """A module, and the names of its attributes that were visited."""

    module: nn.Module
    done: set[str]


def names_all(names: Set[str]) -> bool:
    return not COMPUTES.isdisjoint(names)


def is_odd(cls: type) -> bool:
    """Whether a library's class may run methods of a user's that derives from it, and whose names nobody spells."""
    if cls in PURE or cls in CONTAINERS:
        return False
    package = package_of_module(cls.__module__)
    return package in ("torch", "numpy") or package not in KNOWN


def may_read_anything(value: Any) -> bool:
    """value: a function, a class, a Python module or an object, of a library's."""
    name = getattr(value, "__name__", None) or type(value).__name__
    by_name = names_all({str(name), type(value).__name__}) or package_of_module(module_of(value)) not in KNOWN
    return by_name or any(map(runs_others, held_by(value)))


def held_by(value: Any) -> list[Any]:
    """What a library's function closes over, or its object has as attributes."""
    if isinstance(value, types.FunctionType):
        return [*map(content, value.__closure__ or ()), *(value.__defaults__ or ())]
    return [] if isinstance(value, (type, types.ModuleType)) else list(getattr(value, "__dict__", {}).values())


def runs_others(value: Any) -> bool:
    """Whether it may be code that is not walked through where a library's code holds it."""
    if isinstance(value, (types.MethodType, functools.partial, nn.Module)):
        return True
    return isinstance(value, types.FunctionType) and package_of_module(module_of(value)) not in KNOWN


def module_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return type(value).__module__
    if value.__module__:
        return str(value.__module__)
    own = getattr(value, "__self__", None)
    return str((own if isinstance(own, type) else type(own)).__module__)


def package_of_module(module: str) -> str:
    return module.partition(".")[0].lstrip("_")
