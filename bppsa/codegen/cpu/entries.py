"""Entry points of one form, which a table of calls may name, and what runs such a table (skeleton/images/table.h).

Several Python threads may run tables: a run keeps its state to itself, and ctypes releases the GIL.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from dataclasses import dataclass
from typing import Any

from bppsa.codegen.cpu.native import INT64, POINTER

MOST_ARGUMENTS = 32  # of a call, as skeleton/images/table.h has it


@dataclass(frozen=True)
class Entry:
    """An entry point (skeleton/images/call.h): where it is, and how many arguments it takes."""

    address: int
    count: int


@dataclass(frozen=True)
class EntryPoints:
    """A library's entry points by name."""

    library: ctypes.CDLL

    def __getattr__(self, name: str) -> Entry:
        return entry(self.library, name)


@functools.lru_cache(maxsize=4096)
def entry(library: ctypes.CDLL, name: str) -> Entry:
    count = INT64.from_address(address_of(library, f"bppsa_{name}_count"))
    return Entry(address_of(library, f"bppsa_{name}"), count.value)


def address_of(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], POINTER).value or 0


def runner(library: ctypes.CDLL) -> Any:
    """Its `bppsa_run`."""
    run = library.bppsa_run
    run.argtypes, run.restype = (POINTER, INT64, POINTER, POINTER), None
    return run


def address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]
