"""What the classes of arguments read: methods of named tuples and their kin, whose class no other code has to name."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from bppsa.fxpasses.environment.known import known_environment
from bppsa.fxpasses.environment.walk import Environment


def of_containers(spec: Any) -> list[Environment]:
    """The environments of the methods of the containers that arguments are in. spec: the arguments' in a pytree."""
    return [known_environment(method) for kind in kinds(spec) for method in methods(kind)]


def kinds(spec: Any) -> Iterator[type]:
    if not spec.is_leaf():
        yield spec.context if spec.type is namedtuple else spec.type
    for inner in spec.children():
        yield from kinds(inner)


def methods(kind: type) -> Iterator[FunctionType]:
    """Functions that its users wrote: those that Python makes for a named tuple are of another module."""
    for base in kind.__mro__:
        for each in vars(base).values():
            function = getattr(each, "fget", getattr(each, "__func__", each))
            if isinstance(function, FunctionType) and function.__module__ == base.__module__:
                yield function
