"""What an environment is compared by: a key of plain values, and references to what it knows by address only."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy
import torch

SIMPLE = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)  # they stay


PLAIN = (*SIMPLE, type, types.ModuleType)


def is_simple(value: Any) -> bool:
    """Whether it is such a value itself, or numpy's: what derives from a number may have attributes and methods."""
    return type(value) in SIMPLE or (isinstance(value, SIMPLE) and isinstance(value, numpy.generic))


Reference = Callable[[], Any]


@dataclass(frozen=True)
class Key:
    """Hashed once, and equal at a glance to itself."""

    parts: tuple[Any, ...]

    @functools.cached_property
    def number(self) -> int:
        return hash(self.parts)

    def __hash__(self) -> int:
        return self.number


def exact(value: Any) -> Hashable:
    """A plain value, equal to no other: 1, 1.0 and True are three, 0.0 and -0.0 are two, and a NaN is itself."""
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def reference(value: Any) -> Reference:
    """A weak one where there is such: what remembers a key keeps no object of the user's alive."""
    return weakref.ref(value) if type(value).__weakrefoffset__ else lambda: value
