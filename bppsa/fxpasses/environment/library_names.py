"""What user's code looks up by name in the Python modules and classes of libraries: a patch of such a name is seen."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bppsa.fxpasses.environment.key import PLAIN
from bppsa.fxpasses.environment.trail import MISSING, elements, items

LibrarySpace = type | types.ModuleType
OF_ALL_CODE: tuple[LibrarySpace, ...] = (builtins, *Tensor.__mro__)  # whatever its own names lead to


@dataclass
class LibraryNames:
    """met: which names were found in each Python module or class. Names that no code of the user's spells, as those
    that a library's own code looks up, are left out: that walk would find no end."""

    met: dict[LibrarySpace, set[str]] = field(default_factory=lambda: {space: set() for space in OF_ALL_CODE})

    def enter(self, space: LibrarySpace) -> None:
        self.met.setdefault(space, set())

    def found(self, names_in: Callable[[LibrarySpace], Set[str]]) -> Iterator[tuple[str, Any]]:
        """What stands under these names of each, once."""
        for space, done in list(self.met.items()):
            for name in sorted((names_in(space) & vars(space).keys()) - done):
                done.add(name)
                yield f"{space.__name__}.{name}", vars(space)[name]

    def places(self) -> list[tuple[LibrarySpace, str]]:
        """Where each was found, and where a class would have it that goes before."""
        before: dict[LibrarySpace, list[LibrarySpace]] = {space: [] for space in self.met}
        for one in self.met:
            for base in one.__mro__ if isinstance(one, type) else (one,):
                before.get(base, []).append(one)
        return [(one, name) for space, done in self.met.items() for name in sorted(done) for one in before[space]]


def stand_at(places: Sequence[tuple[LibrarySpace, str]]) -> Sequence[Any]:
    """What stands in these places, as a trail reads it."""
    return [vars(space).get(name, MISSING) for space, name in places]


def is_value(value: Any) -> bool:
    """Whether it is a number or another value that equality tells from others, or a list, tuple or dict of such."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, PLAIN) for each in elements(value))
    if isinstance(value, dict):
        return all(isinstance(each, PLAIN) for each in items(value))
    return isinstance(value, PLAIN)
