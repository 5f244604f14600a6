"""One call of a fused cell, as autograd sees it: its tensors, its sweep, its backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bppsa.common.chain import Recurrence, Role
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent import autograd, reference
from bppsa.runtime.recurrent.autograd import Result
from bppsa.runtime.recurrent.backward import Asked, backward, prepare
from bppsa.runtime.recurrent.newton import Solver
from bppsa.runtime.recurrent.recompute import Recomputing
from bppsa.runtime.recurrent.scan.extent import Extent, Given, Shape
from bppsa.runtime.recurrent.sweep import Needs, Passed, Sweep


@dataclass(frozen=True)
class ScanCall:
    """One call of a fused cell. Tensors: sources [T, B, n], carries [B, n], parameters; outputs: ys, final carries."""

    recurrence: Recurrence
    dtype: torch.dtype
    reach: tuple[frozenset[Role], ...]  # of each result, what it is computed from
    extent: Extent
    sources: int
    carries: int
    strategy: Strategy  # of the backward
    inline: bool
    solver: Solver | None = None  # of the forward; None: step by step
    kept_every: int | None = None  # steps between two states that are kept

    @cached_property
    def shown(self) -> frozenset[int]:
        """The carries whose states are outputs."""
        return frozenset(i for i in self.sweep.program.output_carry if i is not None)

    @property
    def exposed(self) -> int:
        return len(self.shown)

    @property
    def leading(self) -> tuple[int, int]:
        return self.sources, self.carries

    @cached_property
    def sweep(self) -> Sweep:
        return compile_recurrence(self.recurrence, self.dtype, self.inline, self.extent.device.type)

    @cached_property
    def recomputing(self) -> Recomputing | None:
        """What runs in the place of the sweep, where not all states are kept."""
        return None if self.kept_every is None else Recomputing(self.sweep, self.extent, self.kept_every)

    def parts(self, tensors: Sequence) -> tuple[Sequence, Sequence, Sequence]:
        first, second = self.sources, self.sources + self.carries
        return tensors[:first], tensors[first:second], tensors[second:]

    def forward(self, tensors: Given, *, save: bool) -> Result:
        sources, carries, params = self.parts(tensors)
        if save and self.recomputing is not None:
            passed = self.recomputing.forward(sources, carries, params)
            return Result(self.results(passed), (*passed.states, *passed.private.values()))
        if save:
            prepare(self.sweep, self.strategy, self.extent.steps)
        forward = self.sweep.forward if self.solver is None else self.solver.of(self.sweep, self.extent.reverse)
        passed = forward(sources, carries, params, self.extent, save=save)
        shown = self.shown
        exposed = tuple(state for i, state in enumerate(passed.states) if i in shown)
        hidden = tuple(state for i, state in enumerate(passed.states) if i not in shown)
        private = (*hidden, *passed.private.values())
        return Result(self.results(passed), private if save else (), exposed if save else ())

    def results(self, passed: Passed) -> tuple[Tensor, ...]:
        """Outputs and last carries. One carry may be several outputs, but they are tensors of their own."""
        seen: set[int] = set()
        outputs = []
        for output in passed.outputs:
            outputs.append(output.clone() if output.data_ptr() in seen else output.detach())
            seen.add(output.data_ptr())
        return (*outputs, *passed.finals)

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        sources, _, params = self.parts(tensors)
        found = self.reached(grads)
        reached = [need and at in found for at, need in enumerate(needs)]
        need_sources, need_carries, need_params = self.parts(reached)
        sweep, outputs = self.sweep, len(grads) - self.carries
        again = self.recomputing
        passed = sweep.passed(saved, exposed) if again is None else again.passed(saved)
        cotangents = grads[:outputs], grads[outputs:]
        asked = Asked(passed, sources, params, *cotangents, self.extent, Needs(need_sources, need_params))
        gradients = backward(sweep, self.strategy, asked) if again is None else again.backward(asked)
        carries = [g if need else None for g, need in zip(gradients.carries, need_carries, strict=True)]
        return [*gradients.sources, *carries, *gradients.params]

    def apply(self, tensors: Given) -> list[Tensor]:
        """The outputs; those that no gradient leads through are none of autograd's, as with PyTorch."""
        results = autograd.apply(self, tensors)
        needed = {at for at, tensor in enumerate(tensors) if tensor is not None and tensor.requires_grad}
        return [
            result.detach() if result.requires_grad and needed.isdisjoint(self.tensors_at(roles)) else result
            for result, roles in zip(results, self.reach, strict=True)
        ]

    def reached(self, grads: Given) -> set[int]:
        """The tensors whose gradient waits for one that is given; PyTorch gives none to the others, rather than
        zeros."""
        given = (roles for roles, g in zip(self.reach, grads, strict=True) if g is not None)
        return self.tensors_at(frozenset().union(*given))

    def tensors_at(self, roles: Iterable[Role]) -> set[int]:
        first, second = self.sources, self.sources + self.carries
        found = set()
        for role in roles:
            if role.kind == "stream":
                stream = self.recurrence.streams[int(role.index)]
                found.add(stream.source)
                if stream.weight is not None:
                    found.add(second + stream.weight.param)
            else:
                found.add((first if role.kind == "carry" else second) + int(role.index))
        return found

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        recurrence, extent = self.recurrence, self.extent
        outputs = [(extent.steps, extent.rows, width) for width in recurrence.outputs]
        finals = [(extent.rows, width) for width in recurrence.carries]
        kept = self.sweep.shapes(extent)
        shown = [kept[i] for i in sorted(self.shown)]
        return [*outputs, *finals], shown + [shape for i, shape in enumerate(kept) if i not in self.shown]

    def again(self, tensors: Given) -> tuple[Tensor, ...]:
        sources, carries, params = self.parts(tensors)
        outputs, finals = reference.run(self.recurrence, sources, carries, params, self.extent)
        return (*outputs, *finals)
