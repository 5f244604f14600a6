"""What has changed since a model was cut: graphs keep numbers, hooks and tensors as they were then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from bppsa.decisions import RECORD, Report, under
from bppsa.fxpasses.environment.key import SIMPLE
from bppsa.fxpasses.environment.libraries import is_users_name
from bppsa.fxpasses.environment.names import global_names, unnamed
from bppsa.fxpasses.partition.capture.contents import (
    has_names,
    is_librarys,
    leads,
    reader,
    slots,
)
from bppsa.fxpasses.partition.capture.spaces import Contents, Empty, Kept, LookedUpValues, Slots, Space
from bppsa.fxpasses.partition.capture.whole import HOOKS, is_one_node

OF_OPTIONS = (int, float, complex, bool, str, bytes, tuple, type(None))
NOT_ITS_OWN = ("_parameters", "_buffers", "training", RECORD)  # which stages are given anew in each call, and ours
TABLES = frozenset((*HOOKS, "_backward_hooks", "_backward_pre_hooks", "_modules"))


@dataclass(frozen=True)
class LookedUp:
    """What the user's code looks up. names: also those of attributes; what stands under others may change. outside:
    globals and closures, and what gives their values. transient: attributes that each call sets before it reads
    them."""

    names: frozenset[str] = frozenset()
    outside: tuple[tuple[str, Callable[[], Any]], ...] = ()
    transient: frozenset[str] = frozenset()


def since(model: nn.Module, looked_up: LookedUp) -> Callable[[], str]:
    """A function that tells what has changed since now, "" where nothing has."""
    walk = Walk(looked_up.names | {"forward"}, looked_up.transient)
    found = [LookedUpValues(looked_up.outside), *walk.of_model(model), *walk.outside(looked_up), Empty(walk.empty)]

    def changed() -> str:
        return next((told for one in found if (told := one.changed())), "")

    return changed


@dataclass(frozen=True)
class Walk:
    """Through all that code may have read that looks up these names."""

    names: frozenset[str]
    transient: frozenset[str]
    met: dict[int, Any] = field(default_factory=dict)
    empty: list[tuple[str, Any]] = field(default_factory=list)

    def of_model(self, model: nn.Module) -> Iterator[Kept]:
        modules = list(model.named_modules())
        self.met.update((id(module), module) for _, module in modules)
        for path, module in modules:
            yield from self.of_module(path, module)

    def outside(self, looked_up: LookedUp) -> Iterator[Kept]:
        for what, value in looked_up.outside:
            yield from self.within(what, value())

    def of_module(self, path: str, module: nn.Module) -> Iterator[Kept]:
        space, whole, names = vars(module), is_one_node(module), self.names | layer_names(type(module))

        def matters(name: str) -> bool:
            own = name in names and name not in NOT_ITS_OWN and under(path, name) not in self.transient
            return own and not isinstance(space.get(name), Report)

        def is_read(name: str, value: Any) -> bool:
            if not whole:
                return matters(name)
            # What a layer keeps of its weights, as a recurrent one does, is its own affair.
            option = matters(name) and not name.startswith("_") and not isinstance(value, Tensor)
            return option or (isinstance(value, OF_OPTIONS) and name not in NOT_ITS_OWN)

        own = TABLES.union(name for name, value in space.items() if is_read(name, value))
        yield Space(path, module, space, own, matters)
        for name in sorted(own):
            value = space.get(name)
            if name in TABLES and not value:
                self.empty.append((under(path, name), value))
            else:
                yield from self.within(under(path, name), value)
        yield from self.of_class(type(module))

    def within(self, what: str, value: Any) -> Iterator[Kept]:
        """What is in a container, what belongs to a function of the user's, and what objects, classes and Python
        modules hold under a name that is looked up; and in what these lead to."""
        todo = [(what, value)]
        while todo:
            what, value = todo.pop()
            if type(value) in SIMPLE or id(value) in self.met or is_librarys(value):
                continue
            if isinstance(value, type):
                yield from self.of_class(value)
                continue
            self.met[id(value)] = value
            if isinstance(value, nn.Module):  # hidden in a container
                yield from self.of_module(what, value)
                continue
            yield from self.contents(what, value)
            for space, names in self.spaces(value):
                yield Space(what, value, space, names, self.names.__contains__)
                todo += [(under(what, name), space.get(name)) for name in names]
            todo += [(what, each) for each in leads(value)]
            yield from self.of_class(type(value))

    def contents(self, what: str, value: Any) -> Iterator[Kept]:
        read = reader(value)
        if isinstance(value, (list, dict, set, deque)) and not value:
            self.empty.append((what, value))
        elif read is not None:
            yield Contents(what, value, read)

    def spaces(self, value: Any) -> Iterator[tuple[Any, list[str]]]:
        """The namespaces of an object or a Python module, each with the names that are looked up and stand there."""
        home = type(value).__module__
        if has_names(value) and not home.startswith("bppsa."):
            space = vars(value)
            # PyTorch's own code names what a distribution has.
            yield space, list(space) if home.startswith("torch.distributions.") else sorted(self.names & space.keys())
        if found := self.names.intersection(slots(value)):
            yield Slots(value), sorted(found)

    def of_class(self, cls: type) -> Iterator[Kept]:
        for base in cls.__mro__:
            if is_users_name(base.__module__) and id(base) not in self.met:
                self.met[id(base)] = base
                yield from self.of_base(base)

    def of_base(self, base: type) -> Iterator[Kept]:
        def looked_up() -> set[str]:
            return unnamed(base, self.names, False) | (self.names & vars(base).keys())

        names = looked_up()
        yield Space(base.__name__, base, vars(base), names, lambda name: name in looked_up())
        for name in sorted(names):
            yield from self.within(f"{base.__name__}.{name}", vars(base)[name])


def layer_names(cls: type) -> frozenset[str]:
    """What PyTorch's own code looks up in a layer, which nobody sees."""
    bases = (base for base in cls.__mro__ if base.__module__.startswith("torch.nn.") and base is not nn.Module)
    return frozenset(name for base in bases for name in names_in(base))


@lru_cache(maxsize=1024)
def names_in(cls: type) -> frozenset[str]:
    functions = (value for value in vars(cls).values() if isinstance(value, FunctionType))
    return frozenset(name for function in functions for name in global_names(function.__code__))
