"""Which attributes modules and their classes have, and which functions these classes, and those of other objects that a
forward meets, have for methods.

TorchDynamo guards those that a forward reads, and not always that one was missing (`self.__dict__.get("scale")`), that
one is put before another (`type(self).scale = 2`), or that a method is another function (`Net.part = other`), or a
function other code, as after an edit in a notebook that reloads modules. Nor does it guard that a global name is not
there, so that a builtin is taken, or what the class of an object has that is only asked whether it is true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter, contains
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

from torch import nn

from bppsa.fxpasses.environment.libraries import NOT_THE_USERS, is_users_name
from bppsa.fxpasses.environment.names import globals_read
from bppsa.fxpasses.environment.trail import content

NameTable = dict[str, Any] | MappingProxyType[str, Any]
OF_PYTORCH = ("forward", "__call__", "_call_impl", "_conv_forward")  # methods that somebody may put another for
_code = attrgetter("__code__")


class Names:
    """Names in `root`, in its modules and in the classes that its graphs depend on, as they were when first looked
    at."""

    def __init__(self, root: nn.Module) -> None:
        modules = list(root.modules())
        self._known: set[type | FunctionType | partial[Any]] = set()
        self._tables: list[NameTable] = list(map(vars, modules))
        self._names = list(map(list, self._tables))
        self._classes: list[MappingProxyType[str, Any]] = []
        self._methods: list[str] = []
        self._found: list[Any] = []
        self._functions: list[FunctionType] = []
        self._codes: list[CodeType] = []
        self._spaces: list[NameTable] = []
        self._absent: list[str] = []
        self.watch(map(type, modules))

    def watch(self, found: Iterable[type | FunctionType | partial[Any]]) -> None:
        """Look at these from now on, and at what they lead to by name."""
        work = deque(found)
        while work:
            one = work.popleft()
            if one in self._known:
                continue
            self._known.add(one)
            if isinstance(one, type):
                work.extend(one.__mro__)
                work.extend(self._watch_class(one))
            else:
                self._watch_table(vars(one))
                work.extend(self._watch_function(one) if isinstance(one, FunctionType) else followed(one.func))

    def _watch_table(self, table: NameTable) -> None:
        self._tables.append(table)
        self._names.append(list(table))

    def _watch_class(self, cls: type) -> list[FunctionType]:
        if may_change(cls):
            self._watch_table(vars(cls))
        names = methods(cls)
        found = [vars(cls)[name] for name in names]
        functions = [function for method in found if (function := function_of(method)) is not None]
        self._classes += [vars(cls)] * len(names)
        self._methods += names
        self._found += found
        self._functions += functions
        self._codes += map(_code, functions)
        return [function for function in functions if is_users_name(function.__module__)]

    def _watch_function(self, function: FunctionType) -> Iterator[type | FunctionType | partial[Any]]:
        names, space = globals_read(function.__code__), function.__globals__
        absent = [name for name in names if name not in space]
        self._spaces += [space] * len(absent)
        self._absent += absent
        for value in (*(space[name] for name in names if name in space), *map(content, function.__closure__ or ())):
            yield from followed(value)

    def hold(self) -> bool:
        return (
            list(map(list, self._tables)) == self._names
            and list(map(MappingProxyType.get, self._classes, self._methods)) == self._found
            and list(map(_code, self._functions)) == self._codes
            and not any(map(contains, self._spaces, self._absent))
        )


def followed(value: Any) -> Iterator[type | FunctionType | partial[Any]]:
    """Gives what may change, without becoming another object, of a value that a function finds by name."""
    if isinstance(value, partial) or (isinstance(value, FunctionType) and is_users_name(value.__module__)):
        yield value
    elif not isinstance(value, (type, nn.Module)) and may_change(type(value)):
        yield type(value)


def may_change(cls: type) -> bool:
    """Whether a class is the user's, or one that we have made of another."""
    return "_bppsa_before" in vars(cls) or cls.__module__.partition(".")[0] not in NOT_THE_USERS


def methods(cls: type) -> list[str]:
    """The names of the methods that may become others."""
    own = vars(cls)
    return [name for name in (own if may_change(cls) else OF_PYTORCH) if function_of(own.get(name)) is not None]


def function_of(method: Any) -> FunctionType | None:
    """The function that a class calls for it; None for what is no method."""
    inner = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
    return inner if isinstance(inner, FunctionType) else None
