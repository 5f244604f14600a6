"""What has changed since a model was cut: graphs keep numbers, hooks and tensors as they were then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from bppsa.fxpasses.environment.names import unnamed
from bppsa.fxpasses.partition.capture.watched import SIMPLE, Watched, alike, held, is_object, is_users_name, listed
from bppsa.fxpasses.partition.capture.whole import HOOKS, is_whole

OF_WEIGHTS = ("_parameters", "_buffers")  # which are lent to stages anew in each call
Value = Callable[[], Any]


@dataclass(frozen=True)
class LookedUp:
    """By the user's code. names: also those of attributes; what stands under others may change. outside: globals and
    closures, and what gives their values."""

    names: frozenset[str] = frozenset()
    outside: tuple[tuple[str, Value], ...] = ()


def since(model: nn.Module, looked_up: LookedUp) -> Callable[[], str]:
    """A function that tells what has changed since now, "" where nothing has."""
    walk = ModelWalk(looked_up.names | {"forward"})
    before = [(one, one.read()) for one in (*walk.modules(model), *walk.outside(looked_up.outside))]

    def changed() -> str:
        return next((one.what for one, then in before if not alike(one.read(), then)), "")

    return changed


@dataclass(frozen=True)
class ModelWalk:
    names: frozenset[str]
    met: set[int] = field(default_factory=set)

    def modules(self, model: nn.Module) -> Iterator[Watched]:
        for path, module in model.named_modules():
            prefix, space, whole = path and f"{path}.", vars(module), is_whole(module)
            # What a layer keeps of its weights, as a recurrent one does, is its own affair.
            own = {
                name
                for name, value in space.items()
                if not name.startswith("_bppsa")
                and name not in (*OF_WEIGHTS, "training")
                and (isinstance(value, SIMPLE) if whole else name in self.names)
            }
            for name in sorted(own.union(HOOKS, ["_modules"])):
                yield from self.at(prefix + name, partial(space.get, name))
            yield from self.of_class(type(module))

    def outside(self, found: tuple[tuple[str, Value], ...]) -> Iterator[Watched]:
        for what, value in found:
            yield from self.at(what, value)

    def at(self, what: str, value: Value) -> Iterator[Watched]:
        yield Watched(what, partial(listed, value))
        yield from self.within(what, value())

    def within(self, what: str, value: Any) -> Iterator[Watched]:
        """What is in a container, and what objects, classes and Python modules of the user's hold under a name that
        is looked up."""
        if isinstance(value, type):
            yield from self.of_class(value)
        if id(value) in self.met or isinstance(value, (type, nn.Module)):
            return
        self.met.add(id(value))
        if is_object(value) or (isinstance(value, ModuleType) and is_users_name(value.__name__)):
            yield from self.named(what, vars(value))
            yield from self.of_class(type(value))
        else:
            yield from held(what, value)
            if isinstance(value, (list, tuple, dict)):
                for each in value.values() if isinstance(value, dict) else value:
                    yield from self.within(what, each)

    def named(self, what: str, space: Mapping[str, Any], beside: Set[str] = frozenset()) -> Iterator[Watched]:
        for name in sorted((self.names & space.keys()) | beside):
            yield from self.at(f"{what}.{name}", partial(space.get, name))

    def of_class(self, cls: type) -> Iterator[Watched]:
        for base in cls.__mro__:
            if is_users_name(base.__module__) and id(base) not in self.met:
                self.met.add(id(base))
                yield from self.named(base.__name__, vars(base), unnamed(base, self.names, False))
