"""A forward that keeps every k-th state, and a backward that computes the others again, k steps at a time.

Between the two stand [T / k, B, n] of each carry in the place of [T + 1, B, n]. A carry whose states of all steps are
the left side of a product after the sweep is computed again into a tensor of its own, which the backward alone has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.language.stretches import Stretches, StretchWork
from bppsa.plan.recompute import StateSizes
from bppsa.runtime.recurrent.backward import Asked
from bppsa.runtime.recurrent.scan.buffers import allocate
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.sweep import Gradients, Passed, Sweep, Swept


@dataclass(frozen=True)
class Recomputing:
    """length: steps between two states that are kept."""

    sweep: Sweep
    extent: Extent
    length: int

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The shape of the states that are kept, but for their width."""
        return self.stretches(along=True).count, self.extent.rows

    @cached_property
    def streams(self) -> list[str]:
        """The products of all steps that the sweeps read."""
        program = self.sweep.program
        read = {b.name for kernel in (program.inference, *program.recomputing) for b in kernel.arguments}
        return [name for name, _, _ in self.sweep.products if name in read]

    def stretches(self, *, along: bool) -> Stretches:
        return Stretches(self.extent.steps, self.extent.rows, self.length, self.extent.reverse, along)

    def forward(self, sources: Given, carries: Given, params: Sequence[Tensor]) -> Passed:
        """Does as `Sweep.forward`, with states [T / k, B, n] that enter every k-th step; private are the streams."""
        sweep, extent, kernel = self.sweep, self.extent, self.sweep.program.inference
        sweep.prepare([kernel, *sweep.program.recomputing])
        states = sweep.started(kernel, carries, extent)
        given = {f"carry{i}": state for i, state in enumerate(states)}
        kept = {name: torch.empty(*self.shape, state.shape[-1], dtype=sweep.dtype) for name, state in given.items()}
        streams = self.products(sources, params)
        tensors = sweep.named(kernel, given | streams, sources, params, extent)
        self.run([kernel], tensors, (), kept)
        passed = sweep.passing(states, tensors, extent, save=False)
        return replace(passed, states=tuple(kept.values()), private=streams)

    def passed(self, saved: Sequence[Tensor]) -> Passed:
        """Put together again: what `forward` left as states, then as private."""
        count = len(self.sweep.recurrence.carries)
        return Passed((), (), tuple(saved[:count]), dict(zip(self.streams, saved[count:], strict=True)))

    def backward(self, asked: Asked) -> Gradients:
        """What `Sweep.backward` gives; asked.passed: of `forward`."""
        sweep, extent, kernels = self.sweep, self.extent, self.sweep.program.recomputing
        states = {f"carry{i}": state for i, state in enumerate(asked.passed.states)}
        given, carries = sweep.cotangents(asked.g_outputs, asked.g_finals, extent)
        given |= asked.passed.private
        for name in multiplied_after(sweep.program) & states.keys():
            given[name] = allocate(kernels[0].buffer(name), extent, sweep.dtype)
        held = [name for name in (*states, "saved") if name not in given]
        tensors = dict(given)
        for kernel in kernels:
            tensors |= sweep.named(kernel, tensors, asked.sources, asked.params, extent, held)
        used = {b.name for kernel in kernels for b in kernel.arguments}
        self.run(kernels, tensors, [name for name in held if name in used], states)
        return sweep.completed(Swept(carries, tensors), asked.sources, asked.params, extent, asked.needs)

    def products(self, sources: Given, params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The streams by name."""
        program, sweep = self.sweep.program, self.sweep
        buffers = {b.name: b for kernel in (program.inference, *program.recomputing) for b in kernel.arguments}
        found = {name: allocate(buffers[name], self.extent, sweep.dtype) for name in self.streams}
        sweep.multiply(sources, params, found)
        return found

    def run(
        self, kernels: Sequence[Kernel], tensors: Mapping[str, Tensor], held: Sequence[str], kept: Mapping[str, Tensor]
    ) -> None:
        work = StretchWork(
            kernels, tensors, held, kept, self.stretches(along=kernels[0] is self.sweep.program.inference)
        )
        self.sweep.in_stretches(work, [self.sweep.runners[kernel.name] for kernel in kernels])


@lru_cache(maxsize=1024)
def sizes_of(sweep: Sweep) -> StateSizes:
    """The sizes of what one row has in one step."""
    return state_sizes(sweep.program, sweep.dtype.itemsize)


def state_sizes(program: Program, word: int) -> StateSizes:
    """The sizes of what one row has in one step. word: bytes of a number."""
    forward, widths = program.apart[0], program.recurrence.carries
    stay = multiplied_after(program) | {f"carry{i}" for i in program.output_carry if i is not None}
    hidden = sum(width for i, width in enumerate(widths) if f"carry{i}" not in stay)
    saved = sum(b.width for b in forward.buffers if b.name == "saved")
    read = sum(b.width for b in forward.arguments if b.name.startswith(("stream", "source")))
    products = sum(group.width * forward.buffer(d.weight).depth for group in forward.groups for d in group.dots)
    return StateSizes(hidden * word, (sum(widths) + saved) * word, read * word, products / sum(widths))


def multiplied_after(program: Program) -> set[str]:
    """The buffers of which products after the sweep read all steps."""
    return {outer.left.buffer for outer in program.outers}
