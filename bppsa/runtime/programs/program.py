"""Programs: native calls in their order, written once and run by one call of the library.

A program works in several memories, of which each run brings its own: what the forward keeps for the backward, what
only this run needs, and the tensors that come in or go out. An argument is a number or a `Place` in one of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.cpu.entries import Entry, address
from bppsa.runtime import pool
from bppsa.runtime.memory import check_memory
from bppsa.runtime.programs.room import Room

NUMBERS, TAPE, WORK, TENSORS = range(4)  # memories; tensors are one each, from TENSORS on


@dataclass(frozen=True)
class Place:
    """offset: bytes from the begin of the memory."""

    memory: int
    offset: int = 0


@dataclass(frozen=True, eq=False)
class CallProgram:
    """tape, work: bytes that it needs there. held: constants whose addresses are in it."""

    calls: array[int]
    arguments: array[int]
    held: tuple[Tensor | array[int], ...]
    tape: int
    work: int
    dtype: torch.dtype
    run_calls: Any

    def run(self, tape: Tensor | None, tensors: Sequence[Tensor]) -> None:
        """tape: contiguous, with at least `self.tape` bytes. tensors: contiguous, for the memories from TENSORS on."""
        work = pool.take(self.work, torch.uint8)
        tape_at = 0 if tape is None else tape.data_ptr()
        check_memory(tensors)
        bases = array("q", [0, tape_at, work.data_ptr(), *map(Tensor.data_ptr, tensors)])
        self.run_calls(*self._tables, address(bases))

    @cached_property
    def _tables(self) -> tuple[int, int, int]:
        return address(self.calls), len(self.calls) // 3, address(self.arguments)


class Writer:
    """dtype: of all numbers, unless a call says otherwise. run: the `bppsa_run` of a library."""

    def __init__(self, dtype: torch.dtype, run: Any) -> None:
        self.dtype, self.run = dtype, run
        self.tape, self.work = Room(), Room()
        self._tensors = 0
        self._calls, self._arguments = array("q"), array("q")
        self._held: list[Tensor | array[int]] = []

    def tensor(self) -> Place:
        """The next tensor that a run brings."""
        self._tensors += 1
        return Place(TENSORS + self._tensors - 1)

    def take(self, count: int, dtype: torch.dtype | None = None, *, kept: bool = False) -> Place:
        """Room for so many elements, undefined. kept: until the backward has run, not only in this run."""
        room = self.tape if kept else self.work
        return Place(TAPE if kept else WORK, room.take(count * (dtype or self.dtype).itemsize))

    def take_bytes(self, count: int) -> Place:
        return self.take(count, torch.uint8)

    def free(self, place: Place) -> None:
        """No later call reads what is there."""
        if place.memory == WORK:
            self.work.free(place.offset)

    def call(self, entry: Entry, *arguments: Place | Tensor | array[int] | int | None) -> None:
        """A tensor or an array is a constant of the program; None is a null pointer."""
        assert len(arguments) == entry.count, f"{len(arguments)} arguments of {entry.count}"
        self._calls.extend([entry.address, len(self._arguments) // 2, entry.count])
        for argument in arguments:
            if isinstance(argument, Place):
                self._arguments.extend([argument.memory, argument.offset])
            elif isinstance(argument, (Tensor, array)):
                self._held.append(argument)
                at = argument.data_ptr() if isinstance(argument, Tensor) else address(argument)
                self._arguments.extend([NUMBERS, at])
            else:
                self._arguments.extend([NUMBERS, int(argument or 0)])

    def program(self) -> CallProgram:
        return CallProgram(
            self._calls, self._arguments, tuple(self._held), self.tape.size, self.work.size, self.dtype, self.run
        )
