"""What code reads that goes on with each reading: iterators, and random generators of Python's or numpy's."""

from __future__ import annotations

import inspect
import io
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy

from bppsa.fxpasses.environment.key import Reference

StateAccess = tuple[Callable[[Any], Any], Callable[[Any, Any], None]]
GENERATORS: dict[type, StateAccess] = {  # how their states are read, and set
    random.SystemRandom: (lambda value: object(), lambda value, state: None),  # nobody can draw again: no two are alike
    random.Random: (random.Random.getstate, random.Random.setstate),
    numpy.random.RandomState: (numpy.random.RandomState.get_state, numpy.random.RandomState.set_state),
    numpy.random.Generator: (
        lambda value: value.bit_generator.state,
        lambda value, state: setattr(value.bit_generator, "state", state),
    ),
}


def iterators(opaque: Iterable[Reference], behind_call: bool = False) -> bool:
    """opaque: of an environment. behind_call: whether the code has run since; what it has not begun is then nothing
    that it reads, as the generator in what `@contextmanager` makes of a function that decorates another."""
    found = (value for value in behind(opaque) if hasattr(type(value), "__next__") and not is_written(value))
    return not all(behind_call and is_new(value) for value in found)


def is_new(value: Any) -> bool:
    """Whether it is a generator of which nothing has run."""
    return isinstance(value, types.GeneratorType) and inspect.getgeneratorstate(value) == inspect.GEN_CREATED


def is_written(value: Any) -> bool:
    """Whether it is a file that takes what is written, as a logger's handler holds one; a file of lines to be read is
    an iterator."""
    if any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return True
    return isinstance(value, io.IOBase) and not value.closed and not value.readable()


def generators(opaque: Iterable[Reference]) -> list[tuple[Any, Any]]:
    """Each generator, and its state."""
    found = [value for value in behind(opaque) if isinstance(value, tuple(GENERATORS))]
    return [(value, state_of(value)[0](value)) for value in found]


def put_back(states: Iterable[tuple[Any, Any]]) -> bool:
    """Whether one has gone on since, which stands as before then."""
    gone_on = False
    for value, before in states:
        read, write = state_of(value)
        if repr(read(value)) != repr(before):
            gone_on = True
            write(value, before)
    return gone_on


def state_of(value: Any) -> StateAccess:
    return next(GENERATORS[base] for base in type(value).__mro__ if base in GENERATORS)


def behind(opaque: Iterable[Reference]) -> Iterator[Any]:
    """The objects, and those of which they are methods."""
    for refer in opaque:
        value = refer()
        yield value
        if hasattr(type(value), "__self__"):  # an object of the user's is not asked: it may answer anything
            yield value.__self__
