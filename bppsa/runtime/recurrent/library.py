"""A layer's forward by PyTorch's own kernel, and what our backward reads of it, computed for all steps at once.

run       y and the last states, by torch._VF: on a GPU by cuDNN, which no sweep of ours is as fast as
recover   the states that y does not show: a recurrence in which those that it shows are given    runtime.newton
replay    what a forward sweep of ours would have saved                                           runtime.sweep
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.plan.forward import NEWTON
from bppsa.runtime.recurrent.newton import Solver
from bppsa.runtime.recurrent.scan.buffers import allocate
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.sweep import Passed, Sweep

# (x [T, B, n], initial states [D, B, n] each or None, the weights of all directions in turn) -> y, the last states
Run = Callable[[Tensor, Given, Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Library:
    """hidden: of each layer, the sweep of the carries that y does not show, with x and y as its sources; None where y
    shows all."""

    run: Run
    hidden: Sequence[Sweep | None]

    def layer(
        self,
        at: int,
        sweeps: Sequence[Sweep],
        x: Tensor,
        states: Given,
        weights: Sequence[Sequence[Tensor]],
        extents: Sequence[Extent],
        *,
        save: bool,
    ) -> list[Passed]:
        """What `Sweep.forward` leaves, of each direction. states: as `Run` takes them."""
        with torch.no_grad():
            y, *finals = self.run(x, states, [weight for each in weights for weight in each])
        found = []
        for direction, (sweep, shown) in enumerate(zip(sweeps, y.chunk(len(sweeps), -1), strict=True)):
            last = tuple(final[direction] for final in finals)
            if not save:
                found.append(Passed((shown,), last, (), {}))
                continue
            carries = [None if state is None else state[direction] for state in states]
            given, extent = weights[direction], extents[direction]
            known = self.states(at, sweep, x, shown, carries, given, extent)
            found.append(sweep.replay(known, [x], given, extent, finals=last))
        return found

    def states(
        self,
        at: int,
        sweep: Sweep,
        x: Tensor,
        shown: Tensor,
        carries: Given,
        params: Sequence[Tensor],
        extent: Extent,
    ) -> list[Tensor]:
        """The states of all steps, [T+1, B, n] each."""
        whole = allocate(sweep.program.forward.buffer("carry0"), extent, sweep.dtype)
        extent.after(whole).copy_(shown)
        extent.start(whole, carries[0])
        hidden = self.hidden[at]
        if hidden is None:
            return [whole]
        recover = Solver(NEWTON).of(hidden, at)
        given = [x, extent.before(whole)]  # to save keeps the states of all steps, where an inference needs the last
        return [whole, *recover(given, carries[1:], params, extent, save=True).states]
