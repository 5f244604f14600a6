"""What was read to make a key, so that a later call can see that it would make the same one, at a tenth of the cost."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bppsa.decisions import RECORD, Report
from bppsa.fxpasses.network.pruning import hooks_of

INTERNAL = {"_state_dict_hooks", "_load_state_dict_pre_hooks", RECORD}

Read = Callable[[Any], Sequence[Any]]

MISSING = object()
CONTAINERS: set[type] = {list, tuple, set, dict, OrderedDict, deque, types.MappingProxyType}


@dataclass
class Trail:
    """The root is not held: what remembers its trail must not keep it alive. None stands for it."""

    root: Any  # while the trail is made
    empty: list[Any] = field(default_factory=list)  # containers that were
    same: list[tuple[Read, Any, Sequence[Any]]] = field(default_factory=list)  # read: these very objects
    equal: list[tuple[Callable[[Any], Any], Any, Any]] = field(default_factory=list)  # read: something equal

    def add(self, read: Read, value: Any) -> None:
        self.same.append((read, None if value is self.root else value, read(value)))

    def add_container(self, read: Read, value: Any) -> None:
        if size(value):
            self.add(read, value)
        else:
            self.empty.append(value)

    def add_equal(self, read: Callable[[Any], Any], value: Any) -> Any:
        found = read(value)
        self.equal.append((read, value, found))
        return found

    def holds(self, root: Any) -> bool:
        """Whether a walk from `root` would read the same again."""
        if self.has_filled():
            return False
        for read, value, seen in self.same:
            found = read(root if value is None else value)
            if len(found) != len(seen) or not all(map(is_, found, seen)):
                return False
        return all(read(value) == seen for read, value, seen in self.equal)

    def has_filled(self) -> bool:
        """Whether something is in a container that was empty."""
        return any(map(size, self.empty))

    def has_grown(self, root: Any) -> bool:
        """Whether an object or a module has got an attribute that it did not have."""
        return any(
            len(read(root if value is None else value)) > len(seen)
            for read, value, seen in self.same
            if isinstance(read, (OfModule, OfObject))
        )


def container_type(value: Any) -> Any:
    """The container that a class derives from: its methods read what is there, while those of the class may be code
    of anybody's, such as one that imports what is asked for."""
    return next(base for base in type(value).__mro__ if base in CONTAINERS)


def size(value: Any) -> int:
    found: int = container_type(value).__len__(value)
    return found


def elements(value: Any) -> list[Any]:
    return list(container_type(value).__iter__(value))


def items(value: Any) -> Sequence[Any]:
    return [*elements(value), *container_type(value).values(value)]


@dataclass(frozen=True)
class OfModule:
    """Reads the class of a module, the names of its attributes, and what stands under those that are wanted, or all."""

    wanted: Set[str] | None = None

    def __call__(self, value: nn.Module) -> Sequence[Any]:
        state = attributes(value)
        return [type(value), *state, *map(state.get, self.names(state))]

    def names(self, state: Iterable[str]) -> list[str]:
        return [name for name in state if self.wanted is None or name in self.wanted]


@dataclass(frozen=True)
class OfCounters:
    """Reads the classes of attributes of a module that its code adds to, and whose numbers it does not read."""

    names: tuple[str, ...]

    def __call__(self, value: nn.Module) -> Sequence[Any]:
        return [type(vars(value).get(name)) for name in self.names]


def attributes(value: nn.Module) -> dict[str, Any]:
    """The attributes of a module, without what has no say in its forward, or is made anew for each."""
    made = [hook._tensor_name for hook in hooks_of(value).values()] if value._forward_pre_hooks else ()
    return {k: v for k, v in value.__dict__.items() if k not in INTERNAL and k not in made and type(v) is not Report}


def function(value: types.FunctionType) -> Sequence[Any]:
    kwdefaults = value.__kwdefaults__ or {}
    return [
        value.__code__,
        *(value.__defaults__ or ()),
        *kwdefaults,
        *kwdefaults.values(),
        *map(content, value.__closure__ or ()),
    ]


def of_partial(value: functools.partial[Any]) -> Sequence[Any]:
    """They stay, and tell who asks where else a tensor stands."""
    return [value.func, *value.args]


def content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name the function closes over and nothing has been assigned to yet
        return MISSING


def names(wanted: Sequence[str]) -> Read:
    """What stands under these names in a namespace."""
    return lambda space: list(map(space.get, wanted, repeat(MISSING)))


def names_among(wanted: Set[str]) -> Read:
    """What a namespace has under those of many names that it has. A class has some dozens, and the code of a large
    package spells thousands."""
    return lambda space: [each for name, value in list(space.items()) if name in wanted for each in (name, value)]


@dataclass(frozen=True)
class OfObject:
    """Reads the class of an object, these slots and its attributes."""

    slots: tuple[str, ...]

    def __call__(self, value: Any) -> Sequence[Any]:
        held = (getattr(value, name, None) for name in self.slots)
        return [type(value), *held, *items(getattr(value, "__dict__", {}))]


def tensor(value: Tensor) -> tuple[Any, ...]:
    if is_lazy(value):  # of a lazy module, which has no shape yet
        return None, value.dtype, value.device, value.requires_grad, id(value), tuple(own_attributes(value))
    place = (value.data_ptr(), value.stride()) if value.layout is torch.strided else id(value)
    return value.shape, value.dtype, value.device, value.requires_grad, place, tuple(own_attributes(value))


def own_attributes(value: Tensor) -> list[str]:
    """Names of a tensor's own attributes, without those that Dynamo leaves on what it has guarded."""
    return [name for name in vars(value) if not name.startswith("_dynamo_")]
