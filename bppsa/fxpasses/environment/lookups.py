"""What the code that was met so far may look up by a name: in classes and Python modules, in attributes of objects."""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from bppsa.fxpasses.environment import trail
from bppsa.fxpasses.environment.libraries import is_library
from bppsa.fxpasses.environment.library_names import LibraryNames, LibrarySpace, is_value, stand_at
from bppsa.fxpasses.environment.names import counted_names, global_names, names_of_objects, unnamed
from bppsa.fxpasses.environment.reading import (
    FIND_MODULES,
    MACHINERY,
    OF_EACH,
    Holder,
    is_odd,
    may_read_anything,
    module_of,
    names_all,
)
from bppsa.fxpasses.environment.trail import Trail
from bppsa.fxpasses.environment.uses import gives_away


class FoundValue(NamedTuple):
    """mark: for messages. part: for a key, of what is the user's. walked: whether what it holds counts, and not only
    which object it is."""

    mark: str
    value: Any
    part: tuple[int, str] | None
    walked: bool = True
    of_space: bool = False  # whether it stands in a Python module or a class that is looked into


@dataclass
class Lookups:
    homes: frozenset[str]  # the packages that the cell is from
    counts: bool = False  # whether what is only added to is left out, as `counted_names` has it
    names: set[str] = field(default_factory=set)  # all that the functions met so far look up, also as attributes
    attributes: set[str] = field(default_factory=set)  # those of the names that are looked up in objects
    counted: set[str] = field(default_factory=set)  # names of such
    has_modules: bool = False  # whether all Python modules have been entered
    reads_all: bool = False  # whether code that was met may read attributes that it does not name
    spaces: dict[Any, set[str]] = field(default_factory=dict)  # where names may be found -> which of them were visited
    libraries: LibraryNames = field(default_factory=LibraryNames)
    constructed: set[type] = field(default_factory=set)  # classes that code has itself, not objects of them alone
    holders: list[Holder] = field(default_factory=list)  # modules of which it may read some attributes alone
    called: set[type] = field(default_factory=set)  # classes of modules that may be called
    loose: set[type] = field(default_factory=set)  # classes with a method that hands its object on

    def is_the_users(self, module: str | None) -> bool:
        """Whether it may change while the process runs. Of libraries we take for granted that they do not: a walk
        through one of them would find no end."""
        package = (module if isinstance(module, str) else "").partition(".")[0]
        return package in self.homes or not is_library(package)

    @functools.cached_property
    def of_library(self) -> bool:
        """Whether the cell is a library's alone."""
        return bool(self.homes) and all(map(is_library, self.homes))

    def meet_code(self, code: types.CodeType) -> None:
        self.names.update(global_names(code))
        counted = counted_names(code) if self.counts else frozenset()
        self.counted.update(counted)
        self.attributes.update(names_of_objects(code) - counted)

    def meet(self, value: Any) -> None:
        """A function, class, Python module or object of a library, whose code is not walked through."""
        self.reads_all |= may_read_anything(value)

    def enter(self, space: LibrarySpace) -> None:
        """A class or Python module: the functions met may find something in it, as in a tensor's own attributes."""
        if self.is_the_users(space.__module__ if isinstance(space, type) else space.__name__):
            self.spaces.setdefault(space, set())
        else:
            self.meet(space)
            self.libraries.enter(space)

    def enter_classes(self, cls: type) -> None:
        for base in cls.__mro__:
            self.enter(base)
        users = [base for base in cls.__mro__ if self.is_the_users(base.__module__)]
        self.reads_all |= bool(users) and any(is_odd(base) for base in cls.__mro__ if base not in users)
        self.reads_all |= self.is_the_users(type(cls).__module__)

    def enter_modules(self) -> None:
        """All Python modules of the user's, for code that looks one up by its name; of a library's model the library's,
        since its code knows no script that uses it."""
        if self.has_modules:
            return
        self.has_modules = True
        for name, module in list(sys.modules.items()):
            wanted = name.partition(".")[0] in self.homes if self.of_library else self.is_the_users(name)
            if isinstance(module, types.ModuleType) and wanted:
                self.enter(module)

    def call(self, module: nn.Module) -> None:
        self.called.update(type(module).__mro__)

    def found(self) -> Iterator[FoundValue]:
        """What had not been found before. Each is to be visited before the next is asked for: it may lead further."""
        self.reads_all |= names_all(self.attributes | self.names)
        if not FIND_MODULES.isdisjoint(self.attributes | self.names):
            self.enter_modules()
        for at, (space, done) in enumerate(list(self.spaces.items())):
            named = (self.attributes | self.counted | self.machinery_of(space)) & vars(space).keys()
            names = named | unnamed(space, self.names, space in self.constructed)
            for name in sorted(names - done):
                done.add(name)
                if isinstance(space, type) and gives_away(vars(space)[name]):
                    self.loose.add(space)
                mark = f"{getattr(space, '__name__', 'a tensor')}.{name}"
                yield FoundValue(mark, vars(space)[name], (at, name), of_space=not isinstance(space, Tensor))
        for at, (module, done) in enumerate(list(self.holders)):
            state, kind = trail.attributes(module), type(module)
            if self.reads_all or not self.loose.isdisjoint(kind.__mro__):
                self.call(module)
            looked_up = self.attributes | MACHINERY | (self.counted - set(self.counters(module)))
            names = state.keys() if self.reads_all else state.keys() & looked_up
            for name in sorted(names - done - OF_EACH):
                done.add(name)
                yield FoundValue(f"{kind.__name__}.{name}", state[name], (at, name))
            done.update(state.keys() & OF_EACH)
        for mark, value in self.libraries.found(self.names_in_library):
            walked = value is sys.modules or is_value(value) or self.is_the_users(module_of(value))
            yield FoundValue(mark, value, None, walked)

    def machinery_of(self, space: Any) -> frozenset[str]:
        return MACHINERY if space in self.called else frozenset()

    def names_in_library(self, space: LibrarySpace) -> set[str]:
        return self.names if space is builtins else self.attributes | self.counted | self.machinery_of(space)

    def counters(self, module: nn.Module) -> list[str]:
        """Its attributes that code adds to and nobody reads."""
        if type(module).__setattr__ is not nn.Module.__setattr__:
            return []
        names = self.counted - self.attributes
        held = sorted(name for name in names if type(vars(module).get(name)) is int)
        return [name for name in held if not hasattr(type(module), name)]

    def leave(self, followed: Trail) -> None:
        """Has a trail read all that a walk would find."""
        for space, done in self.spaces.items():
            names = self.attributes | self.counted | self.machinery_of(space) | done
            few = len(names) < len(vars(space))
            if isinstance(space, type):
                followed.add(operator.attrgetter("__mro__"), space)
            followed.add(trail.names(tuple(names)) if few else trail.names_among(names), vars(space))
        for holder in self.holders:
            followed.add(trail.OfModule(frozenset(holder.done)), holder.module)
            counters = tuple(name for name in self.counters(holder.module) if name not in holder.done)
            if counters:
                followed.add(trail.OfCounters(counters), holder.module)
        followed.add(stand_at, self.libraries.places())
        self.holders.clear()  # what remembers a trail must not keep its modules alive
