"""What code reads that goes on with each reading: iterators, and random generators of Python's or numpy's."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from bppsa.fxpasses.environment.key import Reference

GENERATORS = (random.Random, numpy.random.Generator, numpy.random.RandomState)


def iterators(opaque: Iterable[Reference]) -> bool:
    """opaque: of an environment."""
    return any(hasattr(type(value), "__next__") for value in behind(opaque))


def generators(opaque: Iterable[Reference]) -> bool:
    return any(isinstance(value, GENERATORS) for value in behind(opaque))


def behind(opaque: Iterable[Reference]) -> Iterator[Any]:
    """The objects, and those of which they are methods."""
    for refer in opaque:
        value = refer()
        yield value
        yield getattr(value, "__self__", None)
