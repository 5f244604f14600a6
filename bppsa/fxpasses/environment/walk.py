"""What a cell depends on besides its arguments: the tensors it may close over, and a key of everything else.

Two calls with equal keys may share one recording: the code is the same, and so is every number, flag and structure the
cell could branch on. Tensors only count by their place, shape and dtype, so that new weights need no new recording.
The walk that finds all this is long; the next call with the same cell only follows its trail.
"""

from __future__ import annotations

import array
import contextvars
import copyreg
import ctypes
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.names import global_names, imported_names, unnamed
from bppsa.fxpasses.environment.trail import MISSING, Trail

SIMPLE = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)  # they stay
PLAIN = (*SIMPLE, type, types.ModuleType)
INSTALLED = {"site-packages", "dist-packages"}
NOT_THE_USERS = sys.stdlib_module_names | {"torch", "numpy", "bppsa"}


Reference = Callable[[], Any]


@dataclass(frozen=True)
class Key:
    """Hashed once, and equal at a glance to itself."""

    parts: tuple[Any, ...]

    @functools.cached_property
    def number(self) -> int:
        return hash(self.parts)

    def __hash__(self) -> int:
        return self.number


@dataclass
class Environment:
    """opaque: references to what the key knows by its address only: it means something while they lead there."""

    trail: Trail
    home: str  # the package that the cell is from
    parts: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    opaque: list[Reference] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    places: dict[tuple, int] = field(default_factory=dict)  # of tensors in memory: two views may be one
    names: set[str] = field(default_factory=set)  # all that the functions met so far look up, also as attributes
    spaces: dict[Any, set[str]] = field(default_factory=dict)  # where they may find them -> which of them were visited
    constructed: set[type] = field(default_factory=set)  # classes that they have themselves, not objects of them alone

    @functools.cached_property
    def key(self) -> Key:
        return Key(tuple(self.parts))

    @functools.cached_property
    def memory(self) -> frozenset[int]:
        """Where its tensors lie."""
        dense = (tensor for tensor in self.tensors if tensor.layout is torch.strided)
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in dense)

    def visit(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self.parts.append(exact(value))
            if isinstance(value, type):
                self.constructed.update(value.__mro__)
                self.visit_classes(value)
            elif isinstance(value, types.ModuleType):
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
        shape, dtype, device, requires_grad, place, names = self.trail.add_equal(trail.tensor, value)
        first = self.places.setdefault((place, shape, requires_grad), len(self.places))
        self.parts.append(("tensor", shape, dtype, device, requires_grad, first))
        if names:
            self.spaces.setdefault(value, set())

    def visit_all(self, values: Any) -> None:
        self.parts.append(len(values))
        for value in values:
            self.visit(value)

    def visit_items(self, value: Any) -> None:
        self.visit_all(list(value))
        self.visit_all(list(value.values()))

    def visit_sequence(self, value: Any) -> None:
        self.trail.add_container(list, value)
        self.visit_all(value)

    def visit_set(self, value: set[Any]) -> None:
        self.trail.add_container(list, value)
        self.visit_all(sorted(value, key=repr))

    def visit_dict(self, value: Any) -> None:
        self.trail.add_container(trail.items, value)
        self.visit_items(value)

    def visit_function(self, fn: types.FunctionType) -> None:
        if not (self.is_the_users(fn.__module__) or self.is_the_users(fn.__globals__.get("__name__"))):
            self.visit_address(fn)
            return
        names = global_names(fn.__code__)
        self.trail.add(trail.function, fn)
        self.trail.add(trail.names(names), fn.__globals__)
        self.parts.append(fn.__code__)
        self.names.update(names)
        self.visit_all(fn.__defaults__ or ())
        self.visit_items(fn.__kwdefaults__ or {})
        contents = map(trail.content, fn.__closure__ or ())
        self.visit_all([content for content in contents if content is not MISSING])
        self.visit_all([fn.__globals__[name] for name in names if name in fn.__globals__])
        if fn.__dict__:
            self.visit_dict(fn.__dict__)
        imported = imported_names(fn.__code__)
        if imported:
            self.trail.add(trail.names(imported), sys.modules)
            self.visit_all([sys.modules[name] for name in imported if name in sys.modules])

    def visit_method(self, method: types.MethodType) -> None:
        self.visit(method.__func__)
        self.visit(method.__self__)

    def visit_partial(self, partial: functools.partial[Any]) -> None:
        self.visit(partial.func)
        self.visit_all(partial.args)
        self.visit_dict(partial.keywords)

    def visit_module(self, module: nn.Module) -> None:
        self.names.add("forward")
        self.trail.add(trail.module, module)
        self.visit_items(trail.attributes(module))
        self.visit_classes(type(module))

    def visit_object(self, value: Any) -> None:
        """An object we know nothing about: itself, and what it shows of its state."""
        self.visit_address(value)
        if type(value).__module__.partition(".")[0] not in ("torch", "bppsa"):
            slots = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
            self.trail.add(trail.members(slots), value)
            self.visit_items(getattr(value, "__dict__", {}))
            self.visit_all([getattr(value, name, None) for name in slots])
            self.visit_classes(type(value))

    def visit_address(self, value: Any) -> None:
        self.parts.append(id(value))
        self.opaque.append(reference(value))

    def visit_equal(self, read: Callable[[Any], Any], value: Any) -> None:
        self.parts.append(self.trail.add_equal(read, value))

    def visit_read(self, read: Callable[[Any], Any], value: Any) -> None:
        """What stands in the place of the value."""
        self.trail.add(lambda value: [read(value)], value)
        self.visit(read(value))

    def visit_classes(self, cls: type) -> None:
        for base in cls.__mro__:
            self.enter(base)

    def enter(self, space: type | types.ModuleType) -> None:
        """A class or Python module of the user's: the functions met may find something in it, as in a tensor's own
        attributes."""
        if self.is_the_users(space.__module__ if isinstance(space, type) else space.__name__):
            self.spaces.setdefault(space, set())

    def is_the_users(self, module: str | None) -> bool:
        """Whether it may change while the process runs. Of libraries we take for granted that they do not: a walk
        through one of them would find no end."""
        package = (module or "").partition(".")[0]
        return (package == self.home and package != "torch") or not is_library(package)

    def visit_spaces(self) -> None:
        """All that is found by a name that some function looks up, until nothing new turns up."""
        found = True
        while found:
            found = False
            for space, done in list(self.spaces.items()):
                names = (self.names & vars(space).keys()) | unnamed(space, self.names, space in self.constructed)
                for name in sorted(names - done):
                    done.add(name)
                    found = True
                    self.parts.append(name)
                    self.visit(vars(space)[name])
        for space, done in self.spaces.items():
            self.trail.add(trail.names(tuple(self.names | done)), vars(space))


VISIT: dict[type, Any] = {
    list: Environment.visit_sequence,
    tuple: Environment.visit_all,
    set: Environment.visit_set,
    dict: Environment.visit_dict,
    types.FunctionType: Environment.visit_function,
    types.MethodType: Environment.visit_method,
    functools.partial: Environment.visit_partial,
    staticmethod: lambda environment, value: environment.visit(value.__func__),
    classmethod: lambda environment, value: environment.visit(value.__func__),
    property: lambda environment, value: environment.visit(value.fget),
    deque: Environment.visit_sequence,
    types.MappingProxyType: Environment.visit_dict,
    contextvars.ContextVar: lambda environment, value: environment.visit_read(lambda held: held.get(None), value),
    weakref.ref: lambda environment, value: environment.visit_read(lambda held: held(), value),
    **dict.fromkeys(
        (numpy.ndarray, numpy.generic),
        lambda environment, value: environment.visit_equal(lambda v: (v.dtype, v.shape, v.tobytes()), value),
    ),
    numpy.ma.MaskedArray: Environment.visit_object,
    **dict.fromkeys(
        (array.array, bytearray, memoryview, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union),
        lambda environment, value: environment.visit_equal(lambda v: memoryview(v).tobytes(), value),
    ),
    nn.Module: Environment.visit_module,
}


def exact(value: Any) -> Hashable:
    """A plain value, equal to no other: 1, 1.0 and True are three, 0.0 and -0.0 are two, and a NaN is itself."""
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def reference(value: Any) -> Reference:
    """A weak one where there is such: what remembers a key keeps no object of the user's alive."""
    return weakref.ref(value) if type(value).__weakrefoffset__ else lambda: value


@functools.cache
def is_library(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in NOT_THE_USERS or not INSTALLED.isdisjoint(Path(file).parts)


def environment_of(cell: Any) -> Environment:
    environment = Environment(Trail(owner(cell)), package_of(cell))
    environment.visit(cell)
    environment.visit_spaces()
    environment.trail.root = None
    return environment


_known: dict[Hashable, tuple[weakref.ref[Any], Environment]] = {}
REMEMBERED = 64  # cells


def known_environment(cell: Any) -> Environment:
    """The environment of the cell, from an earlier call if all is still the same."""
    root = owner(cell)
    key = id(root), getattr(cell, "__func__", None)
    found = _known.get(key)
    if found is not None and found[0]() is root and found[1].trail.holds(root):
        return found[1]
    environment = environment_of(cell)
    if type(root).__weakrefoffset__:
        _known[key] = weakref.ref(root, functools.partial(forget, _known, key)), environment
        for oldest in list(_known)[:-REMEMBERED]:
            _known.pop(oldest, None)
    return environment


def package_of(cell: Any) -> str:
    """The package that the cell is from; "" for a library's: nn.Sequential is no reason to walk through torch."""
    while isinstance(cell, functools.partial):
        cell = cell.func
    module = cell.__module__ if isinstance(cell, types.FunctionType) else type(owner(cell)).__module__
    package = (module or "").partition(".")[0]
    return "" if package in NOT_THE_USERS else package


def owner(cell: Any) -> Any:
    """Of a bound method, which is made anew for each call, its object."""
    return cell.__self__ if isinstance(cell, types.MethodType) else cell


def forget(known: dict[Any, tuple[weakref.ref[Any], Environment]], key: Hashable, gone: weakref.ref[Any]) -> None:
    found = known.get(key)
    if found is not None and found[0] is gone:  # else the address has been given to another cell since
        known.pop(key, None)
