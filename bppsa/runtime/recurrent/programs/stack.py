"""A stack's calls as programs: one native call forward and one backward, where all that is called from here for a
longer one would take longer than its sweeps.

An output is a copy of what the backward reads, so nobody can change that, and there is nothing to watch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.cpu.native import available_threads
from bppsa.common.recent import remember
from bppsa.plan.strategy import divide
from bppsa.runtime import pool
from bppsa.runtime.programs.program import CallProgram
from bppsa.runtime.recurrent.autograd import Result
from bppsa.runtime.recurrent.programs.stack_calls import StackCalls, StackForward
from bppsa.runtime.recurrent.programs.sweep import fits
from bppsa.runtime.recurrent.scan.extent import CPU, Given, Shape
from bppsa.runtime.recurrent.stack import Stack

LONGEST = 64 << 10  # numbers of y
WIDEST = 1024  # of a weight
MOST_PROGRAMS = 64


def may_be_programs(stack: Stack, weights: Sequence[Shape]) -> bool:
    """weights: the shapes of all."""
    extent, strange = stack.extent, (stack.solver, stack.library, stack.extent.lengths)
    if extent.device != CPU or any(s is not None for s in strange):
        return False
    short = math.prod(stack.shapes()[0][0]) <= LONGEST and max(map(max, weights)) <= WIDEST
    return short and divide(stack.strategy, extent.steps).count == 1 and all(fits(s) for s, *_ in stack.sweeps)


class StackPrograms:
    """Called as the stack is. weights: the shapes of all."""

    exposed = 0

    def __init__(self, stack: Stack, weights: Sequence[Shape]) -> None:
        self.stack, self.weights = stack, weights
        self.strategy, self.leading, self.again = stack.strategy, stack.leading, stack.again
        self.outputs = stack.shapes()[0]
        self.forwards: dict[Any, StackForward] = {}
        self.backwards: dict[Any, CallProgram] = {}

    def forward(self, tensors: Given, *, save: bool) -> Result:
        program = self.forward_of(there(tensors), save=save).program
        outputs = tuple([torch.empty(shape, dtype=program.dtype, device=CPU) for shape in self.outputs])
        tape = tape_of(program) if save else None
        program.run(tape, [*contiguous(tensors), *outputs])
        return Result(outputs, () if tape is None else (tape,))

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        program = self.backward_of(there(tensors), there(grads), tuple(needs))
        asked = [
            torch.empty_like(t, memory_format=torch.contiguous_format) if need else None
            for t, need in zip(tensors, needs, strict=True)
        ]
        program.run(saved[0], [*contiguous(tensors), *contiguous(grads), *contiguous(asked)])
        return asked

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        given = (True,) * (1 + self.stack.states + len(self.weights))
        return self.outputs, [tuple(tape_of(self.forward_of(given, save=True).program).shape)]

    def forward_of(self, given: tuple[bool, ...], *, save: bool) -> StackForward:
        key = save, available_threads(), given
        found = self.forwards.get(key)
        if found is None:
            found = StackCalls(self.stack, given, self.weights).forward(save=save)
            remember(self.forwards, key, found, MOST_PROGRAMS)
        return found

    def backward_of(
        self, given: tuple[bool, ...], cotangents: tuple[bool, ...], needs: tuple[bool, ...]
    ) -> CallProgram:
        key = available_threads(), given, cotangents, needs
        found = self.backwards.get(key)
        if found is None:
            forward = self.forward_of(given, save=True)
            found = StackCalls(self.stack, given, self.weights).backward(forward, cotangents, needs)
            remember(self.backwards, key, found, MOST_PROGRAMS)
        return found


def there(tensors: Given) -> tuple[bool, ...]:
    return tuple([t is not None for t in tensors])


def contiguous(tensors: Given) -> list[Tensor]:
    """Returns the tensors that are not None, each in one piece of memory."""
    return [t if t.is_contiguous() else t.contiguous() for t in tensors if t is not None]


def tape_of(program: CallProgram) -> Tensor:
    return pool.take(program.tape // program.dtype.itemsize, program.dtype)
