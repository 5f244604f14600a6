"""What a Python object holds: what tells that it was changed in place, and what it leads to."""

from __future__ import annotations

import array
import contextvars
import copyreg
import ctypes
import itertools
import random
import types
import weakref
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.environment.trail import Read, items

EQUAL = (int, bool, str, bytes, torch.device, torch.dtype, slice, range)  # the same where they are equal

Lead = Callable[[Any], Iterable[Any]]


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and (all(map(is_, a, b)) or all(map(same, a, b)))


def same(x: Any, y: Any) -> bool:
    if x is y or type(x) is not type(y):
        return x is y
    if isinstance(x, tuple):
        return are_same(x, y)
    if isinstance(x, (float, complex)):
        return repr(x) == repr(y)  # 0.0 and -0.0 are two, and a NaN is itself
    return type(x) in EQUAL and x == y


def of_tensor(value: Tensor) -> Sequence[Any]:
    """Its version, and its memory, which is another one where its .data was set. Kept, so nothing else is put there."""
    with torch._C.DisableTorchFunction():
        version = 0 if value.is_inference() else value._version
        if value.layout is not torch.strided or not torch._C._has_storage(value):
            return [version]
        place = value.storage_offset(), value.shape, value.stride()
        return [version, value.untyped_storage(), value.dtype, place]


def of_function(value: FunctionType) -> Sequence[Any]:
    return [value.__code__, value.__defaults__, *items(value.__kwdefaults__ or {})]


GENERATORS: dict[type, Callable[[Any], list[Any]]] = {
    random.Random: lambda value: [value.getstate()],
    np.random.Generator: lambda value: [str(value.bit_generator.state)],
    np.random.RandomState: lambda value: [str(value.get_state())],
}
BYTES = (array.array, bytearray, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
READ: dict[type, Read] = {
    **GENERATORS,
    **dict.fromkeys((list, deque), list),
    **dict.fromkeys((dict, MappingProxyType), items),
    **dict.fromkeys(BYTES, lambda value: [memoryview(value).tobytes()]),
    **dict.fromkeys((UserDict, UserList), lambda value: [value.data]),
    ChainMap: lambda value: [value.maps],
    set: lambda value: sorted(value, key=id),
    np.ndarray: lambda value: [value.shape, value.tobytes()],
    itertools.count: lambda value: [repr(value)],
    contextvars.ContextVar: lambda value: [value.get(None)],
    weakref.ref: lambda value: [value()],
    FunctionType: of_function,
    Tensor: of_tensor,
}
LEADS: dict[type, Lead] = {
    **dict.fromkeys((list, tuple, set, frozenset, deque), iter),
    dict: dict.values,
    MappingProxyType: lambda value: value.values(),
    **dict.fromkeys((UserDict, UserList), lambda value: [value.data]),
    contextvars.ContextVar: lambda value: [value.get(None)],
    weakref.ref: lambda value: [value()],
    **dict.fromkeys((staticmethod, classmethod), lambda value: [value.__func__]),
    ChainMap: lambda value: [value.maps],
    partial: lambda value: [value.func, value.args, value.keywords],
    property: lambda value: [value.fget],
    MethodType: lambda value: [value.__func__, value.__self__],
    FunctionType: lambda value: [value.__defaults__, value.__kwdefaults__, vars(value).get("__wrapped__")],
}
PLAIN = (types.SimpleNamespace, Namespace, UserDict, UserList, ChainMap, partial)  # of Python's: for others to fill


def reader(value: Any) -> Read | None:
    return next((READ[base] for base in type(value).__mro__ if base in READ), None)


def leads(value: Any) -> Iterator[Any]:
    """The values in a container, and what a function or a method has beside its code; without atoms."""
    lead = next((LEADS[base] for base in type(value).__mro__ if base in LEADS), None)
    for each in () if lead is None else lead(value):
        if type(each) not in SIMPLE:
            yield each


def attributes(value: Any) -> Sequence[Any]:
    """The names and values that an object has."""
    own = vars(value) if has_names(value) else {}
    return [*items(own), *(getattr(value, name, None) for name in slots(value))]


def has_names(value: Any) -> bool:
    """Whether it has a namespace of its own. No code of the user's is asked."""
    return type(value).__dictoffset__ != 0


def slots(value: Any) -> list[str]:
    found: list[str] = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    return found


def has_attributes(value: Any) -> bool:
    return has_names(value) or bool(slots(value))


def is_object(value: Any) -> bool:
    """Whether it is the user's own, with attributes."""
    if isinstance(value, (nn.Module, Tensor, type)) or not has_attributes(value):
        return False
    return is_users_name(type(value).__module__)


def is_space(value: Any) -> bool:
    """Whether it is a class or a Python module of the user's."""
    if isinstance(value, type):
        return is_users_name(value.__module__)
    return isinstance(value, types.ModuleType) and is_users_name(value.__name__)


def is_librarys(value: Any) -> bool:
    """Whether it is a function, a class or a Python module of a library: nobody changes these."""
    if isinstance(value, types.ModuleType):
        return not is_users_name(value.__name__)
    return isinstance(value, (FunctionType, type)) and not is_users_name(str(value.__module__))


def is_lasting(value: Any, model: nn.Module) -> bool:
    """Whether it is there before a forward and after it: an attribute of the model, or a function that holds nothing a
    forward has made, as a closure may."""
    if type(value) in SIMPLE or isinstance(value, (nn.Module, type, types.BuiltinFunctionType)):
        return True
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return all(one is value or is_lasting(one, model) for one in (*held, *(value.__defaults__ or ())))
    if isinstance(value, MethodType):
        return is_lasting(value.__self__, model)
    return any(value is one for module in model.modules() for one in vars(module).values())
