"""All chunks of a recurrence's steps side by side, each from a carry of its own: what Newton's iteration looks at.

Carries are [C, B, N] here, the carries of a cell side by side, chunks in the order of the recurrence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.language.ir import Kernel
from bppsa.plan.strategy import Division
from bppsa.runtime.recurrent.backward import Asked, reduce
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.scan.buffers import allocate
from bppsa.runtime.recurrent.scan.chunks import Chunks
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.scan.pairs import scaled
from bppsa.runtime.recurrent.sweep import Needs, Passed, Sweep

NOTHING = Needs((), ())


class Shots(ABC):
    """One call cut into chunks. `passed` and what `corrections` reads are those of the last `run`."""

    def __init__(
        self,
        sweep: Sweep,
        reduction: Reduction,
        division: Division,
        sources: Given,
        carries: Given,
        params: Sequence[Tensor],
        extent: Extent,
    ) -> None:
        self.sweep, self.reduction, self.division = sweep, reduction, division
        self.sources, self.carries, self.params, self.extent = sources, carries, params, extent

    def start(self) -> Tensor:
        """A first guess: that every chunk begins as the first does."""
        rows = self.extent.rows
        given = [
            torch.zeros(rows, width, dtype=self.sweep.dtype, device=self.extent.device) if h is None else h
            for h, width in zip(self.carries, self.reduction.widths, strict=True)
        ]
        return torch.cat(given, 1).expand(self.division.count, -1, -1).clone()

    @abstractmethod
    def run(self, entering: Tensor) -> Tensor:
        """What leaves each chunk; of the last one, after its last step."""

    @abstractmethod
    def reduced(self) -> Tensor:
        """Each chunk to its J^T, [C, B, columns, pitch]."""

    @abstractmethod
    def result(self, *, save: bool) -> Passed:
        """What one sweep over all steps would leave."""

    def corrections(self, residual: Tensor) -> Tensor:
        """d_c of every chunk, in the reduction's dtype. residual: r_c, of the last chunk 0."""
        by_row = self.reduced()
        found = None if self.sweep.corrections is None else self.sweep.corrections(by_row, residual)
        return self.one_by_one(by_row, residual) if found is None else found

    def one_by_one(self, running: Tensor, residual: Tensor) -> Tensor:
        """The corrections by torch's own ops, from all chunks' reductions."""
        jacobian = jacobians(self.reduction, running.flatten(0, 1)).unflatten(0, running.shape[:2])
        order = self.reduction.structure.order
        right = residual[..., order].unsqueeze(-1)
        d = [torch.zeros_like(right[0])]
        for c in range(self.division.count - 1):
            d.append(jacobian[c] @ d[-1] + right[c])
        found = torch.empty_like(residual)
        found[..., order] = torch.stack(d).squeeze(-1)
        return found

    def along(self, chunks: Tensor) -> Tensor:
        """Turns chunks from the order of time to that of the recurrence, and back."""
        return chunks.flip(0) if self.extent.reverse else chunks

    def asked(self, passed: Passed, sources: Given, extent: Extent) -> Asked:
        outputs = [None] * len(self.sweep.recurrence.outputs)
        return Asked(passed, sources, self.params, outputs, (), extent, NOTHING)


class AsRows(Shots):
    """Runs kernels that know no chunks, or packed batches: chunks are rows of a shorter call."""

    @cached_property
    def chunks(self) -> Chunks:
        return Chunks(self.extent, self.division.length, self.division.count)

    @cached_property
    def cut(self) -> Given:
        return [t if t is None else self.chunks.cut(t) for t in self.sources]

    def run(self, entering: Tensor) -> Tensor:
        rows = self.chunks.sorted(self.along(entering).flatten(0, 1), 0)
        carries = rows.split(list(self.reduction.widths), 1)
        self.passed = self.sweep.forward(self.cut, carries, self.params, self.chunks.inner, save=True)
        leaving = self.chunks.unsorted(torch.cat(self.passed.finals, 1), 0)
        return self.along(leaving.unflatten(0, (self.division.count, self.extent.rows)))

    def reduced(self) -> Tensor:
        running = self.reduction.start(self.chunks.inner.rows, self.extent.device)
        asked = self.asked(self.passed, self.cut, self.chunks.inner)
        reduce(self.sweep, self.reduction, running.flatten(0, 1), asked)
        by_row = self.chunks.unsorted(running, 0).unflatten(0, (self.division.count, self.extent.rows))
        return self.along(by_row)

    def result(self, *, save: bool) -> Passed:
        inner, outer = self.chunks.inner, self.extent
        states = []
        for i, (state, carry) in enumerate(zip(self.passed.states, self.carries, strict=True)):
            whole = allocate(self.sweep.program.forward.buffer(f"carry{i}"), outer, self.sweep.dtype)
            outer.after(whole).copy_(self.visited(self.chunks.joined(inner.after(state))))
            outer.start(whole, carry)
            states.append(whole)
        outputs = [
            self.chunks.joined(output) if i is None else outer.after(states[i])
            for output, i in zip(self.passed.outputs, self.sweep.program.output_carry, strict=True)
        ]
        private = {name: self.chunks.joined(t) for name, t in self.passed.private.items()} if save else {}
        return Passed(tuple(outputs), tuple(map(outer.end, states)), tuple(states), private)

    def visited(self, rows: Tensor) -> Tensor:
        """The rows with zeros where a packed one has ended: there stands the carry that its next chunk began with."""
        if self.extent.lengths is None:
            return rows
        ended = torch.arange(self.extent.steps).unsqueeze(1) >= self.extent.lengths
        return rows.masked_fill(ended.unsqueeze(-1).to(rows.device), 0.0)


class InPlace(Shots):
    """Runs kernels that find the chunks of a whole sequence themselves. A state is [C, L + 1, B, n], chunks in the
    order of time, each with the row that enters it."""

    @cached_property
    def kernel(self) -> Kernel:
        return self.sweep.program.forward

    @property
    def ends(self) -> tuple[tuple[slice, int], ...]:
        """Where chunks end in time: those of L steps, and the last one."""
        length, before = self.division.length, self.division.count - 1
        return (slice(0, before), length), (slice(before, None), self.extent.steps - before * length)

    def run(self, entering: Tensor) -> Tensor:
        length, reverse = self.division.length, self.extent.reverse
        self.sweep.prepare([self.kernel, self.sweep.program.backward])
        whole = entering.new_empty(self.division.count, length + 1, *entering.shape[1:])
        in_time = self.along(entering)
        if reverse:
            for chunks, end in self.ends:
                whole[chunks, end] = in_time[chunks]
        else:
            whole[:, 0] = in_time
        states = whole.split(list(self.reduction.widths), -1)
        self.tensors = self.sweep.swept_forward(
            self.kernel, states, self.sources, self.params, self.extent, chunk=length
        )
        self.states = states
        if reverse:
            return self.along(whole[:, 0])
        return torch.cat([whole[chunks, end] for chunks, end in self.ends])

    def reduced(self) -> Tensor:
        rows = self.extent.rows
        running = self.reduction.start(self.division.count * rows, self.extent.device)
        by_chunk = running.view(self.division.count, -1, running.shape[-1])
        private = {name: self.tensors[name] for name in self.sweep.private}
        asked = self.asked(Passed((), (), self.states, private), self.sources, self.extent)
        reduce(self.sweep, self.reduction, by_chunk, asked, chunk=self.division.length)
        return self.along(running.unflatten(0, (self.division.count, rows)))

    def result(self, *, save: bool) -> Passed:
        states = [self.joined(state, carry) for state, carry in zip(self.states, self.carries, strict=True)]
        return self.sweep.passing(states, self.tensors, self.extent, save=save)

    def joined(self, state: Tensor, carry: Tensor | None) -> Tensor:
        """[T+1, B, n]"""
        extent, (count, rows, batch, width) = self.extent, state.shape
        length, first = rows - 1, 1 - extent.reverse
        whole = state.new_empty(count * length + 1, batch, width)
        whole[first : first + count * length].unflatten(0, (count, length)).copy_(state[:, first : first + length])
        whole = whole[: extent.steps + 1]
        extent.start(whole, carry)
        return whole


def shots(sweep: Sweep, reduction: Reduction, division: Division, *call: Any) -> Shots:
    """call: sources, carries, params and extent."""
    kind = AsRows if sweep.boundaries is None or call[-1].active is not None else InPlace
    return kind(sweep, reduction, division, *call)


def jacobians(reduction: Reduction, running: Tensor) -> Tensor:
    """J of every chunk, block by block, [rows, count, m, m], of what a reduction leaves: its transpose, whose columns
    have a power of two beside them."""
    width, size, order = reduction.structure.width, reduction.size, reduction.structure.order
    columns = scaled(running[:, :width, :size], running[:, :width, size + 1 :].int())
    through = running[:, -1:, :size].isnan()  # a reset selects, whatever stood there
    return torch.where(through, columns, 0.0)[..., order].transpose(1, 2)
