"""Kernels over stretches of a recurrence's steps, one stretch after the other: its definition.

Between two stretches stand the states that are kept. A forward goes along the stretches and keeps what enters each; a
backward comes back, and begins each with the states computed again from what was kept. Those are held for one stretch
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.codegen.language.ir import Buffer, Kernel, Kind


@dataclass(frozen=True)
class Stretches:
    """T steps of B rows in stretches of `length`, in the recurrence's own direction; the last may be shorter. along:
    whether they are gone through in that direction."""

    steps: int
    rows: int
    length: int
    reverse: bool
    along: bool

    @property
    def count(self) -> int:
        return -(-self.steps // self.length)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count) if self.along else reversed(range(self.count)))

    def bounds(self, at: int) -> tuple[int, int]:
        """The steps [start, stop) of a stretch, in the order of time."""
        start, stop = at * self.length, min((at + 1) * self.length, self.steps)
        return (self.steps - stop, self.steps - start) if self.reverse else (start, stop)


@dataclass(frozen=True)
class StretchWork:
    """What is done in every stretch: `kernels` in turn, on buffers that they share by name. tensors: the whole call's;
    held: the names of buffers, of kind STREAM or STATE, that hold one stretch at a time; kept: [C, B, n] by the name of
    a state or of what is RUNNING, the row that enters each of C stretches, written if `stretches.along`, else read."""

    kernels: Sequence[Kernel]
    tensors: Mapping[str, Tensor]
    held: Sequence[str]
    kept: Mapping[str, Tensor]
    stretches: Stretches

    def buffers(self) -> dict[str, Buffer]:
        return {b.name: b for kernel in self.kernels for b in kernel.arguments}


def run(work: StretchWork, runners: Sequence[Callable[..., None]]) -> None:
    """Runs each kernel by its runner, all rows at once."""
    buffers, stretches = work.buffers(), work.stretches
    like, held_shape = next(iter(work.kept.values())), (stretches.length + 1, stretches.rows)
    given = {name: tensor for name, tensor in work.tensors.items() if name in buffers}
    given |= {name: like.new_empty(*held_shape, buffers[name].width) for name in work.held}
    totals = {
        name: torch.zeros_like(given[name], dtype=torch.float64)
        for name, buffer in buffers.items()
        if buffer.kind is Kind.COLUMN_SUM
    }
    for at in stretches:
        start, stop = stretches.bounds(at)
        part = {
            name: steps_of(tensor, buffers[name].kind, name in work.held, start, stop) for name, tensor in given.items()
        }
        for name, states in work.kept.items():
            row = entering(part[name], buffers[name].kind, stretches.reverse)
            states[at].copy_(row) if stretches.along else row.copy_(states[at])
        for kernel, runner in zip(work.kernels, runners, strict=True):
            tensors = [part[b.name] for b in kernel.arguments]
            runner(tensors, steps=stop - start, rows=stretches.rows, active=None, reverse=stretches.reverse)
        for name, total in totals.items():
            total += given[name]
    for name, total in totals.items():
        given[name].copy_(total)


def steps_of(tensor: Tensor, kind: Kind, held: bool, start: int, stop: int) -> Tensor:
    """What a kernel is given of a tensor for the steps [start, stop)."""
    if kind not in (Kind.STREAM, Kind.STATE):
        return tensor
    first = 0 if held else start
    return tensor[first : first + stop - start + (kind is Kind.STATE)]


def entering(tensor: Tensor, kind: Kind, reverse: bool) -> Tensor:
    """The row of a stretch's states from which its first step starts."""
    return tensor if kind is Kind.RUNNING else tensor[-1 if reverse else 0]
