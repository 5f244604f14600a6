"""A recurrence's forward by Newton's iteration, all chunks of steps side by side (multiple shooting).

Unknown are the carries h_c that enter the chunks, F_c(h_c) is what leaves chunk c. One iteration:

    sweep    every chunk from its guessed h_c; r_c = F_c(h_c) - h_{c+1} is what is still wrong      runtime.sweep
    reduce   every chunk to J_c^T, the transposed Jacobian of F_c                                   runtime.reduce
    scan     over the chunks, along time: d_{c+1} = J_c d_c + r_c, d_0 = 0, and h_{c+1} <- h_{c+1} + d_{c+1}

With chunks of one step this is DEER (Lim et al., 2024) and ParaRNN (Danieli et al., 2025). A chunk's sweep is not
linearised, so longer chunks need fewer iterations and fewer matrices. After k iterations the first k chunks are exact.
What converged is the very sweep that the backward reads, so gradients are exact for the states that came out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bppsa.plan.forward import Forward, division
from bppsa.plan.strategy import Division
from bppsa.runtime.backward import Asked, is_out_of_memory, reduce
from bppsa.runtime.chunks import Chunks
from bppsa.runtime.extent import Extent, Given
from bppsa.runtime.pairs import scaled
from bppsa.runtime.reduce import Reduction
from bppsa.runtime.sweep import Needs, Passed, Sweep, allocate

NOTHING = Needs((), ())
# Of the residual, in units of rounding: enough, and where it does not fall any more, as good as it gets. A sweep's own
# rounding is of that size, so that the error is that of one sweep over all steps.
CONVERGED, AT_FLOOR = 4, 64
PATIENCE = 4  # iterations that need not make progress
REST, LONGEST_REST = 8, 1024  # calls after a failure: where weights change, what failed may converge later


@dataclass
class Memory:
    """What the last calls of a module or a cell left: what entered their chunks, how many of them in a row did not
    converge, and for how many more "auto" does not try again: twice as many after each.

    Copies and pickles of it are empty: it belongs to one object in one process.
    """

    entering: dict[Hashable, Tensor] = field(default_factory=dict)
    failures: int = 0
    resting: int = 0

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()

    def note(self, *, failed: bool) -> None:
        """A call by Newton's iteration is over."""
        self.failures = self.failures + 1 if failed else 0
        self.resting = min(REST * 2 ** (self.failures - 1), LONGEST_REST) if failed else 0

    def rests(self) -> bool:
        """Asked once a call that could try."""
        if not self.resting:
            return False
        self.resting -= 1
        return True


@dataclass(frozen=True)
class Outcome:
    """iterations: reductions that were made; residual: the last one, relative; failure: why it is no solution."""

    iterations: int
    residual: float
    failure: str = ""


@dataclass(frozen=True)
class Solver:
    """Newton's iteration for one call. outcomes: what came of each of its passes so far."""

    forward: Forward
    memory: Memory = field(default_factory=Memory)
    outcomes: list[Outcome] = field(default_factory=list)

    def of(self, sweep: Sweep, at: Hashable) -> Callable[..., Passed]:
        """In the place of `sweep.forward`. at: which of the call's passes it is."""
        return functools.partial(self.run, sweep, at)

    def run(
        self,
        sweep: Sweep,
        at: Hashable,
        sources: Given,
        carries: Given,
        params: Sequence[Tensor],
        extent: Extent,
        *,
        save: bool,
    ) -> Passed:
        chunks = division(self.forward, extent.steps)
        if chunks.count == 1 or extent.rows == 0:
            return sweep.forward(sources, carries, params, extent, save=save)
        reduction = sweep.reduction(diagonal=self.forward.jacobian == "diagonal")
        try:
            shots = Shots(sweep, reduction, chunks, sources, carries, params, extent)
            outcome, entering = iterate(shots, self.guess(shots, at), self.forward)
            if not outcome.failure:
                self.remember(entering, at)
                self.outcomes.append(outcome)
                return shots.result(save=save)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            outcome = Outcome(0, math.nan, "not enough memory")
        self.outcomes.append(outcome)
        return sweep.forward(sources, carries, params, extent, save=save)

    def guess(self, shots: Shots, at: Hashable) -> Tensor:
        first, known = shots.start(), self.memory.entering.get(at) if self.forward.warm_start else None
        if known is None or (known.shape, known.dtype, known.device) != (first.shape, first.dtype, first.device):
            return first
        return torch.cat([first[:1], known[1:]])

    def remember(self, entering: Tensor, at: Hashable) -> None:
        if self.forward.warm_start:
            self.memory.entering[at] = entering


class Shots:
    """All chunks of one call side by side, as rows of a shorter one, each from a carry of its own.

    Carries are [C, B, N] here, the carries of a cell side by side, chunks in the order of the recurrence.
    """

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
        self.carries, self.params, self.extent = carries, params, extent
        self.chunks = Chunks(extent, division.length, division.count)
        self.sources = [t if t is None else self.chunks.cut(t) for t in sources]

    def start(self) -> Tensor:
        """A first guess: that every chunk begins as the first does."""
        rows = self.extent.rows
        given = [
            torch.zeros(rows, width, dtype=self.sweep.dtype, device=self.extent.device) if h is None else h
            for h, width in zip(self.carries, self.reduction.widths, strict=True)
        ]
        return torch.cat(given, 1).expand(self.division.count, -1, -1).clone()

    def run(self, entering: Tensor) -> Tensor:
        """What leaves each chunk."""
        rows = self.chunks.sorted(self.along(entering).flatten(0, 1), 0)
        carries = rows.split(list(self.reduction.widths), 1)
        self.passed = self.sweep.forward(self.sources, carries, self.params, self.chunks.inner, save=True)
        leaving = self.chunks.unsorted(torch.cat(self.passed.finals, 1), 0)
        return self.along(leaving.unflatten(0, (self.division.count, self.extent.rows)))

    def corrections(self, residual: Tensor) -> Tensor:
        """d_c of every chunk, in the reduction's dtype. residual: r_c, of the last chunk 0."""
        running = self.reduction.start(self.chunks.inner.rows, self.extent.device)
        outputs = [None] * len(self.sweep.recurrence.outputs)
        asked = Asked(self.passed, self.sources, self.params, outputs, (), self.chunks.inner, NOTHING)
        reduce(self.sweep, self.reduction, running.flatten(0, 1), asked)
        by_row = self.chunks.unsorted(running, 0).unflatten(0, (self.division.count, self.extent.rows))
        by_row = self.along(by_row)
        found = None if self.sweep.corrections is None else self.sweep.corrections(by_row, residual)
        return self.one_by_one(by_row, residual) if found is None else found

    def one_by_one(self, running: Tensor, residual: Tensor) -> Tensor:
        """The corrections by torch's own ops, from all chunks' reductions [C, B, columns, pitch]."""
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
        return chunks.flip(0) if self.extent.reverse else chunks

    def result(self, *, save: bool) -> Passed:
        """As one sweep over all steps leaves it."""
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
        """With zeros where a packed row has ended: there stands the carry that its next chunk began with."""
        if self.extent.lengths is None:
            return rows
        ended = torch.arange(self.extent.steps).unsqueeze(1) >= self.extent.lengths
        return rows.masked_fill(ended.unsqueeze(-1).to(rows.device), 0.0)


def jacobians(reduction: Reduction, running: Tensor) -> Tensor:
    """J of every chunk, block by block, [rows, count, m, m], of what a reduction leaves: its transpose, whose columns
    have a power of two beside them."""
    width, size, order = reduction.structure.width, reduction.size, reduction.structure.order
    columns = scaled(running[:, :width, :size], running[:, :width, size + 1 :].int())
    through = running[:, -1:, :size].isnan()  # a reset selects, whatever stood there
    return torch.where(through, columns, 0.0)[..., order].transpose(1, 2)


def iterate(shots: Shots, entering: Tensor, forward: Forward) -> tuple[Outcome, Tensor]:
    """From a guess of what enters each chunk to what does; leaves `shots` at its last sweep."""
    eps = torch.finfo(entering.dtype).eps
    tolerance = CONVERGED * eps if forward.tolerance is None else forward.tolerance
    floor = 0.0 if forward.tolerance is not None else AT_FLOOR * eps
    wrongs: list[float] = []
    while True:
        leaving = shots.run(entering)
        residual = torch.zeros_like(leaving, dtype=shots.reduction.dtype)  # the last chunk has no next
        residual[:-1] = leaving[:-1].to(residual.dtype) - entering[1:]
        wrongs.append(relative(residual, leaving, list(shots.reduction.widths)))
        made, wrong = len(wrongs) - 1, wrongs[-1]
        if wrong <= tolerance or (wrong <= floor and made and wrong >= wrongs[-2]):
            return Outcome(made, wrong), entering
        failure = why_not(wrongs, forward.iterations)
        if failure:
            return Outcome(made, wrong, failure), entering
        d = shots.corrections(residual)
        # as F_c + J_c d_c: what came from an exact h_c is taken over as it is
        entering = torch.cat([entering[:1], (leaving[:-1] + (d[1:] - residual[:-1])).to(entering.dtype)])


def why_not(wrongs: Sequence[float], most: int) -> str:
    """Why another iteration would be in vain; "" where it would not. wrongs: the residuals so far."""
    if not math.isfinite(wrongs[-1]):
        return "not finite"
    if len(wrongs) > most:
        return f"no convergence within {most} iterations"
    if len(wrongs) > PATIENCE and min(wrongs[-PATIENCE:]) >= min(wrongs[:-PATIENCE]):
        return f"no progress in {PATIENCE} iterations"
    return ""


def relative(residual: Tensor, states: Tensor, widths: list[int]) -> float:
    """The largest, relative to the largest number of the same carry and row of the batch. Both [C, B, N]"""
    tiny = torch.finfo(states.dtype).tiny
    largest = [
        r.abs().amax((0, 2)) / s.abs().amax((0, 2)).clamp(min=tiny)
        for r, s in zip(residual.split(widths, -1), states.split(widths, -1), strict=True)
    ]
    return float(torch.stack(largest).max())
