"""What a cell depends on besides its arguments: the tensors it may close over, and a key of everything else.

Two calls with equal keys may share one recording: the code is the same, and so is every number, flag and structure the
cell could branch on. Tensors only count by their place, shape and dtype, so that new weights need no new recording.
"""

from __future__ import annotations

import contextvars
import copyreg
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn

PLAIN = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    type,
    types.ModuleType,
)
INTERNAL = {"_state_dict_hooks", "_load_state_dict_pre_hooks"}
NOT_THE_USERS = sys.stdlib_module_names | {"torch", "numpy", "bppsa"}


@dataclass
class Environment:
    """`opaque` keeps alive what the key knows by its address only."""

    parts: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    opaque: list[Any] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    places: dict[tuple, int] = field(default_factory=dict)  # of tensors in memory: two views may be one
    names: set[str] = field(default_factory=set)  # all that the functions met so far look up, also as attributes
    spaces: dict[Any, set[str]] = field(default_factory=dict)  # where they may find them -> which of them were visited

    @property
    def key(self) -> Hashable:
        return tuple(self.parts)

    def visit(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.parts.append((type(value), value))
            if isinstance(value, (type, types.ModuleType)):
                self.enter(value)
            return
        if id(value) in self.seen:
            self.parts.append(("again", self.seen[id(value)]))
            return
        self.seen[id(value)] = len(self.seen)
        if isinstance(value, Tensor):
            self.visit_tensor(value)
            return
        visit = next((VISIT[base] for base in type(value).__mro__ if base in VISIT), Environment.visit_object)
        self.parts.append(type(value))
        visit(self, value)

    def visit_tensor(self, value: Tensor) -> None:
        self.tensors.append(value)
        place: Any = id(value)
        if value.layout is torch.strided:
            place = value.data_ptr(), value.stride(), value.shape
        first = self.places.setdefault((place, value.requires_grad), len(self.places))
        self.parts.append(("tensor", value.shape, value.dtype, value.device, value.requires_grad, first))

    def visit_all(self, values: Any) -> None:
        self.parts.append(len(values))
        for value in values:
            self.visit(value)

    def visit_dict(self, value: dict[Any, Any]) -> None:
        self.visit_all(list(value))
        self.visit_all(list(value.values()))

    def visit_function(self, fn: types.FunctionType) -> None:
        self.parts.append(fn.__code__)
        self.names.update(global_names(fn.__code__))
        self.visit_all(fn.__defaults__ or ())
        self.visit_dict(fn.__kwdefaults__ or {})
        self.visit_all([cell.cell_contents for cell in fn.__closure__ or () if filled(cell)])
        self.visit_all([fn.__globals__[name] for name in global_names(fn.__code__) if name in fn.__globals__])

    def visit_method(self, method: types.MethodType) -> None:
        self.visit(method.__func__)
        self.visit(method.__self__)

    def visit_partial(self, partial: functools.partial[Any]) -> None:
        self.visit(partial.func)
        self.visit_all(partial.args)
        self.visit_dict(partial.keywords)

    def visit_module(self, module: nn.Module) -> None:
        self.names.add("forward")
        self.visit_dict({name: value for name, value in module.__dict__.items() if name not in INTERNAL})
        self.visit_classes(type(module))

    def visit_object(self, value: Any) -> None:
        """An object we know nothing about: itself, and what it shows of its state."""
        self.parts.append(id(value))
        self.opaque.append(value)
        if type(value).__module__.partition(".")[0] != "torch":
            self.names.add("__call__")
            self.visit_dict(getattr(value, "__dict__", {}))
            slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
            self.visit_all([getattr(value, name, None) for name in slots])
            self.visit_classes(type(value))

    def visit_classes(self, cls: type) -> None:
        for base in cls.__mro__:
            self.enter(base)

    def enter(self, space: type | types.ModuleType) -> None:
        """A class or Python module of the user's: the functions met may find something in it."""
        if is_the_users(space.__module__ if isinstance(space, type) else space.__name__):
            self.spaces.setdefault(space, set())

    def visit_spaces(self) -> None:
        """All that is found by a name that some function looks up, until nothing new turns up."""
        found = True
        while found:
            found = False
            for space, done in list(self.spaces.items()):
                for name in sorted((self.names & vars(space).keys()) - done):
                    done.add(name)
                    found = True
                    self.parts.append(name)
                    self.visit(vars(space)[name])


VISIT: dict[type, Any] = {
    list: Environment.visit_all,
    tuple: Environment.visit_all,
    set: lambda environment, value: environment.visit_all(sorted(value, key=repr)),
    dict: Environment.visit_dict,
    types.FunctionType: Environment.visit_function,
    types.MethodType: Environment.visit_method,
    functools.partial: Environment.visit_partial,
    staticmethod: lambda environment, value: environment.visit(value.__func__),
    classmethod: lambda environment, value: environment.visit(value.__func__),
    property: lambda environment, value: environment.visit(value.fget),
    deque: Environment.visit_all,
    types.MappingProxyType: Environment.visit_dict,
    contextvars.ContextVar: lambda environment, value: environment.visit(value.get(None)),
    weakref.ref: lambda environment, value: environment.visit(value()),
    **dict.fromkeys(
        (numpy.ndarray, numpy.generic), lambda e, value: e.parts.append((value.dtype, value.shape, value.tobytes()))
    ),
    nn.Module: Environment.visit_module,
}


@functools.cache
def is_the_users(module: str) -> bool:
    return module.partition(".")[0] not in NOT_THE_USERS


def environment_of(cell: Any) -> Environment:
    environment = Environment()
    environment.visit(cell)
    environment.visit_spaces()
    return environment


def filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name the function closes over and nothing has been assigned to yet
        return False
    return True


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names a function, and the functions inside it, look up outside themselves."""
    nested = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in global_names(constant)
    ]
    return tuple(dict.fromkeys([*code.co_names, *nested]))
