"""What a cell depends on besides its arguments: the tensors it may close over, and a key of everything else.

Two calls with equal keys may share one recording: the code is the same, and so is every number, flag and structure the
cell could branch on. Tensors only count by their place, shape and dtype, so that new weights need no new recording.
The walk that finds all this is long; the next call with the same cell only follows its trail.
"""

from __future__ import annotations

import copyreg
import functools
import sys
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.key import PLAIN, SIMPLE, Key, Reference, exact, reference
from bppsa.fxpasses.environment.kinds import ALL_OF_THEM, KINDS
from bppsa.fxpasses.environment.libraries import homes_of, owner
from bppsa.fxpasses.environment.lookups import FoundValue, Lookups
from bppsa.fxpasses.environment.names import imported_names, names_in_module
from bppsa.fxpasses.environment.reading import KNOWN, OF_EACH, PURE, Holder, package_of_module
from bppsa.fxpasses.environment.trail import MISSING, Trail
from bppsa.fxpasses.environment.uses import gives_away, lets_go

LARGE = 64  # entries


@dataclass
class Environment:
    """opaque: references to what the key knows by its address only: it means something while they lead there."""

    trail: Trail
    lookups: Lookups
    parts: list[Any] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    opaque: list[Reference] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    places: dict[tuple, int] = field(default_factory=dict)  # of tensors in memory: two views may be one
    marks: list[tuple[int, str]] = field(default_factory=list)  # what the parts from there on are of, for messages
    in_library: bool = False  # whether what is visited stands beside a library's functions, or in a class of its

    @functools.cached_property
    def key(self) -> Key:
        return Key(tuple(self.parts))

    @functools.cached_property
    def memory(self) -> frozenset[int]:
        """The memory in which its tensors lie."""
        dense = (tensor for tensor in self.tensors if tensor.layout is torch.strided)
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in dense)

    def visit(self, value: Any, held: bool = False) -> None:
        """held: whether the code that has the value there looks up attributes of it and does nothing else with it."""
        if isinstance(value, PLAIN):
            self.parts.append(exact(value))
            if isinstance(value, type):
                self.lookups.constructed.update(value.__mro__)
                self.lookups.enter_classes(value)
            elif isinstance(value, types.ModuleType):
                self.lookups.enter(value)
            elif type(value) not in SIMPLE and id(value) not in self.seen:
                self.seen[id(value)] = len(self.seen)
                self.visit_own(value)
            return
        if isinstance(value, nn.Module) and not held:
            self.lookups.call(value)
        if id(value) in self.seen:
            self.parts.append(("again", self.seen[id(value)]))
            return
        self.seen[id(value)] = len(self.seen)
        if isinstance(value, Tensor):
            self.visit_tensor(value)
            return
        kind = next((base for base in type(value).__mro__ if base in VISIT), None)
        self.parts.append(type(value))
        (VISIT[kind] if kind is not None else Environment.visit_object)(self, value)
        if kind is not None and kind not in WHOLE:
            self.visit_own(value)

    def visit_tensor(self, value: Tensor) -> None:
        if not is_lazy(value):
            self.tensors.append(value)
        shape, dtype, device, requires_grad, place, names = self.trail.add_equal(trail.tensor, value)
        first = self.places.setdefault((place, shape, requires_grad), len(self.places))
        self.parts.append(("tensor", shape, dtype, device, requires_grad, first, bool(names)))
        if names:
            self.lookups.spaces.setdefault(value, set())

    def visit_all(self, values: Any) -> None:
        values = trail.elements(values)
        self.parts.append(len(values))
        for value in values:
            self.visit(value)

    def visit_items(self, value: Any) -> None:
        self.visit_all(value)
        self.visit_all(list(trail.container_type(value).values(value)))

    def visit_container(self, read: Callable[[Any], Any], value: Any) -> bool:
        """Whether what it holds is to be visited, which the trail reads. A large table of names and classes, which a
        library's code has beside its functions, counts by its size: it is filled when the library is imported, and to
        read it takes longer than a call."""
        if self.in_library and trail.size(value) > LARGE and all(map(is_name, read(value))):
            self.visit_address(value)
            self.visit_equal(trail.size, value)
            return False
        self.trail.add_container(read, value)
        return True

    def visit_sequence(self, value: Any) -> None:
        if self.visit_container(trail.elements, value):
            self.visit_all(value)

    def visit_set(self, value: set[Any]) -> None:
        if self.visit_container(trail.elements, value):
            self.visit_all(sorted(trail.elements(value), key=repr))

    def visit_dict(self, value: Any) -> None:
        if value is sys.modules:
            self.lookups.enter_modules()
        elif self.visit_container(trail.items, value):
            self.visit_items(value)

    def visit_function(self, fn: types.FunctionType) -> None:
        if not (self.lookups.is_the_users(fn.__module__) or self.lookups.is_the_users(fn.__globals__.get("__name__"))):
            self.visit_address(fn)
            self.lookups.meet(fn)
            return
        code, names = fn.__code__, names_in_module(fn.__code__)
        self.trail.add(trail.function, fn)
        self.trail.add(trail.names(names), fn.__globals__)
        self.parts.append(code)
        self.lookups.meet_code(code)
        self.visit_all(fn.__defaults__ or ())
        self.visit_items(fn.__kwdefaults__ or {})
        closed = dict(zip(code.co_freevars, map(trail.content, fn.__closure__ or ()), strict=True))
        self.visit_named({name: value for name, value in closed.items() if value is not MISSING}, code)
        self.visit_named({name: fn.__globals__[name] for name in names if name in fn.__globals__})
        if fn.__dict__:
            self.visit_dict(fn.__dict__)
        imported = imported_names(fn.__code__)
        if imported:
            self.trail.add(trail.names(imported), sys.modules)
            self.visit_all([sys.modules[name] for name in imported if name in sys.modules])

    def visit_method(self, method: types.MethodType) -> None:
        self.visit(method.__func__)
        self.visit(method.__self__, held=not gives_away(method.__func__))

    def visit_partial(self, partial: functools.partial[Any]) -> None:
        self.trail.add(trail.of_partial, partial)
        self.visit(partial.func)
        self.visit_all(partial.args)
        self.visit_dict(partial.keywords)

    def visit_module(self, module: nn.Module) -> None:
        state = trail.attributes(module)
        if all(
            base in PURE or self.lookups.is_the_users(base.__module__) or is_ours(base) for base in type(module).__mro__
        ):
            self.lookups.holders.append(Holder(module, set()))
            self.visit_items({name: value for name, value in state.items() if name in OF_EACH})
        else:
            self.trail.add(trail.OfModule(), module)
            self.visit_items(state)
        self.lookups.enter_classes(type(module))

    def visit_object(self, value: Any) -> None:
        """An object we know nothing about: itself, and what it shows of its state."""
        self.visit_address(value)
        if not self.lookups.is_the_users(type(value).__module__):
            self.lookups.meet(value)
        if package_of_module(type(value).__module__) not in ("torch", "bppsa"):
            self.visit_attributes(value)
            self.lookups.enter_classes(type(value))

    def visit_own(self, value: Any) -> None:
        """What one has beside what its kind has, as a dict has that derives from `dict`: attributes, methods."""
        if hasattr(value, "__dict__") or slots_of(value):
            self.visit_attributes(value)
        if package_of_module(type(value).__module__) not in KNOWN:
            if not self.lookups.is_the_users(type(value).__module__):
                self.lookups.meet(value)
            self.lookups.enter_classes(type(value))

    def visit_attributes(self, value: Any) -> None:
        slots = slots_of(value)
        self.trail.add(trail.OfObject(slots), value)
        self.visit_items(getattr(value, "__dict__", {}))
        self.visit_all([getattr(value, name, None) for name in slots])

    def visit_address(self, value: Any) -> None:
        self.parts.append(id(value))
        self.opaque.append(reference(value))

    def visit_equal(self, read: Callable[[Any], Any], value: Any) -> None:
        self.parts.append(self.trail.add_equal(read, value))

    def visit_read(self, read: Callable[[Any], Any], value: Any) -> None:
        """What stands in the place of the value."""
        self.trail.add(lambda value: [read(value)], value)
        self.visit(read(value))

    def visit_named(self, values: dict[str, Any], code: types.CodeType | None = None) -> None:
        """code: of what closes over them, as variables."""
        self.parts.append(tuple(values))
        for name, value in values.items():
            self.marks.append((len(self.parts), name))
            self.visit(value, held=code is not None and isinstance(value, nn.Module) and not lets_go(code, name))

    def visit_lookups(self) -> None:
        """All that is found by a name that some function looks up, until nothing new turns up."""
        found = True
        while found:
            before = len(self.marks), len(self.lookups.called)
            for each in self.lookups.found():
                self.visit_found(each)
            found = before != (len(self.marks), len(self.lookups.called))
        self.lookups.leave(self.trail)

    def visit_found(self, found: FoundValue) -> None:
        if found.part is not None:
            self.parts.append(found.part)
        self.marks.append((len(self.parts), found.mark))
        self.in_library = found.of_space and self.lookups.of_library
        (self.visit if found.walked else self.visit_address)(found.value)
        self.in_library = False


def is_name(value: Any) -> bool:
    """Whether it is a name, a class or None, or some of these."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_name, value))
    return value is None or isinstance(value, (str, type))


def slots_of(value: Any) -> tuple[str, ...]:
    return tuple(copyreg._slotnames(type(value)))  # type: ignore[attr-defined]


def is_ours(cls: type) -> bool:
    """Whether it is a class that a compiled module has before its own, and that reads nothing of its user's."""
    return cls.__module__.startswith("bppsa.frontend.")


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
    nn.Module: Environment.visit_module,
    **KINDS,
}
# Whose visits leave nothing out that counts.
WHOLE = {types.FunctionType, types.MethodType, nn.Module, *ALL_OF_THEM}


def environment_of(cell: Any, counts: bool = False, given: tuple[type, ...] = ()) -> Environment:
    """counts: whether who asks adds to the counters of a call itself, as `counters` in `state.py` finds them. given:
    classes of what the cell is given, whose methods it may call."""
    environment = Environment(Trail(owner(cell)), Lookups(homes_of(cell), counts))
    environment.visit(cell)
    environment.visit_all(given)
    environment.visit_lookups()
    environment.trail.root = None
    return environment
