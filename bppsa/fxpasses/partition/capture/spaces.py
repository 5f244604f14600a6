"""Parts of Python's state as they are, each of which tells later whether it has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import is_
from typing import Any, Protocol

from bppsa.decisions import under
from bppsa.fxpasses.environment.trail import MISSING, Read
from bppsa.fxpasses.partition.capture.contents import are_same


class Kept(Protocol):
    def changed(self) -> str:
        """What is not as it was, "" where nothing is."""


class Slots:
    """The slots of an object, read as a namespace is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self.value, name, default)

    def keys(self) -> Any:
        return {}.keys()  # no other comes


class Space:
    """What stands under some names in a namespace, and that no other name comes that matters. owner: whose it is, of
    whose class methods are."""

    def __init__(self, what: str, owner: Any, space: Any, names: Iterable[str], matters: Callable[[str], bool]) -> None:
        self.what, self.owner, self.matters = what, owner, matters
        self.cls, self.get, self.keys = type(owner), space.get, space.keys()
        self.space = space if getattr(owner, "__dict__", None) is space else None
        self.names = sorted(names)
        self.then = self.now()
        self.known = set(self.keys)

    def now(self) -> list[Any]:
        return list(map(self.get, self.names, repeat(MISSING)))

    def changed(self) -> str:
        if type(self.owner) is not self.cls or (self.space is not None and vars(self.owner) is not self.space):
            return self.what or "the class of the model"
        now = self.now()
        if not all(map(is_, now, self.then)):
            for name, one, then in zip(self.names, now, self.then, strict=True):
                if not are_same([one], [then]):
                    return under(self.what, name)
            self.then = now
        if self.keys <= self.known:
            return ""
        come = [name for name in self.keys - self.known if isinstance(name, str) and self.matters(name)]
        if come:
            return under(self.what, min(come))
        self.known.update(self.keys)
        return ""


class Contents:
    """What is in a container or a tensor, or belongs to a function."""

    def __init__(self, what: str, value: Any, read: Read) -> None:
        self.what, self.value, self.read, self.then = what, value, read, read(value)

    def changed(self) -> str:
        return "" if are_same(self.read(self.value), self.then) else self.what


class Empty:
    """Containers that were empty, as most dicts of hooks are."""

    def __init__(self, found: Sequence[tuple[str, Any]]) -> None:
        self.what, self.values = [what for what, _ in found], [value for _, value in found]

    def changed(self) -> str:
        if not any(self.values):
            return ""
        return next(what for what, value in zip(self.what, self.values, strict=True) if value)


class LookedUpValues:
    """Globals and closures, and what gives their values."""

    def __init__(self, found: Sequence[tuple[str, Callable[[], Any]]]) -> None:
        self.what, self.values = [what for what, _ in found], [value for _, value in found]
        self.then = self.now()

    def now(self) -> list[Any]:
        return [value() for value in self.values]

    def changed(self) -> str:
        now = self.now()
        if are_same(now, self.then):
            return ""
        return next(w for w, a, b in zip(self.what, now, self.then, strict=True) if not are_same([a], [b]))
