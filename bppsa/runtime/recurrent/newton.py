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
from bppsa.runtime.recurrent.backward import is_out_of_memory
from bppsa.runtime.recurrent.multiple_shooting import Shots, shots
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.sweep import Passed, Sweep

# A residual, in units of rounding, that is small enough, and one that will do where it does not fall any more. A
# sweep's own rounding is of that size, so that the error is that of one sweep over all steps.
CONVERGED, AT_FLOOR = 4, 64
PATIENCE = 4  # iterations that need not make progress
REST, LONGEST_REST = 8, 1024  # calls after a failure: where weights change, what failed may converge later


@dataclass
class NewtonHistory:
    """What the last calls of a module or a cell left: what entered their chunks, how many of them in a row did not
    converge, and for how many more "auto" does not try again: twice as many after each.

    Copies and pickles of it are empty: it belongs to one object in one process.
    """

    entering: dict[Hashable, Tensor] = field(default_factory=dict)
    failures: int = 0
    resting: int = 0

    def __reduce__(self) -> tuple[type[NewtonHistory], tuple[()]]:
        return NewtonHistory, ()

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
class Convergence:
    """iterations: reductions that were made; residual: the last one, relative; failure: why it is no solution."""

    iterations: int
    residual: float
    failure: str = ""


@dataclass(frozen=True)
class Solver:
    """Newton's iteration for one call. outcomes: what came of each of its passes so far."""

    forward: Forward
    memory: NewtonHistory = field(default_factory=NewtonHistory)
    outcomes: list[Convergence] = field(default_factory=list)

    def of(self, sweep: Sweep, at: Hashable) -> Callable[..., Passed]:
        """What runs in the place of `sweep.forward`. at: which of the call's passes it is."""
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
            side_by_side = shots(sweep, reduction, chunks, sources, carries, params, extent)
            if reduction.structure.solves_at_once and self.forward.jacobian == "full":
                outcome = at_once(side_by_side)
            else:
                outcome, entering = iterate(side_by_side, self.guess(side_by_side, at), self.forward)
                if not outcome.failure:
                    self.remember(entering, at)
            if not outcome.failure:
                self.outcomes.append(outcome)
                return side_by_side.result(save=save)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            outcome = Convergence(0, math.nan, "not enough memory")
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


def at_once(shots: Shots) -> Convergence:
    """What enters each chunk, where chunks are affine maps of it: one iteration from zeros. Leaves `shots` at the sweep
    from there. Where states grow, rounding does too: then it is no solution."""
    entering = shots.start()
    entering[1:] = 0.0
    found = shots.corrections(shots.run(entering).to(shots.reduction.dtype))[1:]
    entering = torch.cat([entering[:1], found.to(entering.dtype)])
    wrong = wrong_of(shots, shots.run(entering), entering)[1]
    if not math.isfinite(wrong):
        return Convergence(1, wrong, "not finite")
    rounded = wrong <= AT_FLOOR * torch.finfo(entering.dtype).eps
    return Convergence(1, wrong, "" if rounded else "its states grow, and rounding with them")


def wrong_of(shots: Shots, leaving: Tensor, entering: Tensor) -> tuple[Tensor, float]:
    """What leaves each chunk less what enters the next, and how large that is, relative to the states."""
    residual = torch.zeros_like(leaving, dtype=shots.reduction.dtype)  # the last chunk has no next
    residual[:-1] = leaving[:-1].to(residual.dtype) - entering[1:]
    return residual, relative(residual, leaving, list(shots.reduction.widths))


def iterate(shots: Shots, entering: Tensor, forward: Forward) -> tuple[Convergence, Tensor]:
    """Goes from a guess of what enters each chunk to what does; leaves `shots` at its last sweep."""
    eps = torch.finfo(entering.dtype).eps
    tolerance = CONVERGED * eps if forward.tolerance is None else forward.tolerance
    floor = 0.0 if forward.tolerance is not None else AT_FLOOR * eps
    wrongs: list[float] = []
    while True:
        leaving = shots.run(entering)
        residual, wrong = wrong_of(shots, leaving, entering)
        made = len(wrongs)
        wrongs.append(wrong)
        if wrong <= tolerance or (wrong <= floor and made and wrong >= wrongs[-2]):
            return Convergence(made, wrong), entering
        failure = why_not(wrongs, forward.iterations)
        if failure:
            return Convergence(made, wrong, failure), entering
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
