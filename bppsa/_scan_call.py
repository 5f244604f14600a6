"""A fused cell, and one call of it: what `bppsa.scan` runs once it is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from bppsa._sweeps import compile_recurrence
from bppsa.chain import Recurrence
from bppsa.fxpasses.environment import Environment
from bppsa.plan.choose import multiply_inline
from bppsa.plan.strategy import Strategy
from bppsa.runtime import autograd, reference
from bppsa.runtime.autograd import Result
from bppsa.runtime.backward import Asked, backward, prepare
from bppsa.runtime.extent import Extent, Given, Shape
from bppsa.runtime.newton import Memory, Solver
from bppsa.runtime.sweep import Needs, Sweep


@dataclass(frozen=True)
class Plan:
    """A cell that was fused, for one structure and one set of shapes (T aside)."""

    recurrence: Recurrence
    dtype: torch.dtype
    hoisted: fx.GraphModule | None
    tail: fx.GraphModule | None
    places: tuple[int | Tensor, ...]  # of each captured tensor in the environment, or a constant made by the cell
    y_spec: Any
    y_shapes: tuple[torch.Size, ...]  # of one step
    carry_shapes: tuple[torch.Size, ...]
    memory: Memory = field(default_factory=Memory, compare=False)

    def captured(self, environment: Environment) -> list[Tensor]:
        return [environment.tensors[at] if isinstance(at, int) else at for at in self.places]

    def run(
        self,
        carry: Sequence[Tensor],
        xs: Sequence[Tensor],
        captured: Sequence[Tensor],
        reverse: bool,
        strategy: Strategy,
        solver: Solver | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        steps, rows = xs[0].shape[0], carry[0].shape[0]
        sources, params = xs, captured
        stacked = [] if self.hoisted is self.tail is None else [x.reshape(steps * rows, *x.shape[2:]) for x in xs]
        if self.hoisted is not None:
            sources, params = self.hoisted(*stacked, *captured)
        rows_of = [self.rows(s, (steps, rows, -1)) if i in self.used else None for i, s in enumerate(sources)]
        extent = Extent(steps, rows, reverse, device=xs[0].device)
        inline = multiply_inline(rows, extent.device.type)
        call = ScanCall(self, extent, len(rows_of), len(carry), strategy, inline, solver)
        masks = (p.to(self.dtype) if p.dtype is torch.bool else p for p in params)
        results = autograd.apply(call, [*rows_of, *(self.rows(c, (rows, -1)) for c in carry), *masks])
        outputs, finals = results[: len(results) - len(carry)], results[len(results) - len(carry) :]
        ys: Sequence[Tensor] = outputs
        if self.tail is not None:
            shapes = [node.meta["val"].shape[1:] for node in self.recurrence.output_nodes]
            flat = [o.reshape(steps * rows, *shape) for o, shape in zip(outputs, shapes, strict=True)]
            ys = self.tail(*flat, *stacked, *captured)
        ys = [
            y if y.shape[1:] == shape else y.reshape(steps, *shape) for y, shape in zip(ys, self.y_shapes, strict=True)
        ]
        shaped = zip(finals, self.carry_shapes, strict=True)
        return [f if f.shape == shape else f.reshape(shape) for f, shape in shaped], ys

    @cached_property
    def used(self) -> frozenset[int]:
        """The sources that the sweep reads."""
        return frozenset(stream.source for stream in self.recurrence.streams)

    def rows(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """As a sweep takes it, without a call where it is so already."""
        tensor = tensor if tensor.dtype is self.dtype else tensor.to(self.dtype)
        return tensor if tensor.dim() == len(shape) else tensor.reshape(shape)


@dataclass(frozen=True)
class ScanCall:
    """One call of a fused cell. Tensors: sources [T, B, n], carries [B, n], parameters; outputs: ys, final carries."""

    plan: Plan
    extent: Extent
    sources: int
    carries: int
    strategy: Strategy  # of the backward
    inline: bool
    solver: Solver | None = None  # of the forward; None: step by step

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
        return compile_recurrence(self.plan.recurrence, self.plan.dtype, self.inline, self.extent.device.type)

    def parts(self, tensors: Sequence) -> tuple[Sequence, Sequence, Sequence]:
        first, second = self.sources, self.sources + self.carries
        return tensors[:first], tensors[first:second], tensors[second:]

    def forward(self, tensors: Given, *, save: bool) -> Result:
        sources, carries, params = self.parts(tensors)
        if save:
            prepare(self.sweep, self.strategy, self.extent.steps)
        forward = self.sweep.forward if self.solver is None else self.solver.of(self.sweep, self.extent.reverse)
        passed = forward(sources, carries, params, self.extent, save=save)
        seen: set[int] = set()
        outputs = []
        for output in passed.outputs:  # one carry may be several ys, but they are tensors of their own
            outputs.append(output.clone() if output.data_ptr() in seen else output.detach())
            seen.add(output.data_ptr())
        shown = self.shown
        exposed = tuple(state for i, state in enumerate(passed.states) if i in shown)
        hidden = tuple(state for i, state in enumerate(passed.states) if i not in shown)
        return Result(
            (*outputs, *passed.finals), (*hidden, *passed.private.values()) if save else (), exposed if save else ()
        )

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        sources, _, params = self.parts(tensors)
        need_sources, need_carries, need_params = self.parts(needs)
        sweep, outputs = self.sweep, len(grads) - self.carries
        passed = sweep.passed(saved, exposed)
        cotangents = grads[:outputs], grads[outputs:]
        asked = Asked(passed, sources, params, *cotangents, self.extent, Needs(need_sources, need_params))
        gradients = backward(sweep, self.strategy, asked)
        carries = [g if need else None for g, need in zip(gradients.carries, need_carries, strict=True)]
        return [*gradients.sources, *carries, *gradients.params]

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        recurrence, extent = self.plan.recurrence, self.extent
        outputs = [(extent.steps, extent.rows, width) for width in recurrence.outputs]
        finals = [(extent.rows, width) for width in recurrence.carries]
        kept = self.sweep.shapes(extent)
        shown = [kept[i] for i in sorted(self.shown)]
        return [*outputs, *finals], shown + [shape for i, shape in enumerate(kept) if i not in self.shown]

    def again(self, tensors: Given) -> tuple[Tensor, ...]:
        sources, carries, params = self.parts(tensors)
        outputs, finals = reference.run(self.plan.recurrence, sources, carries, params, self.extent)
        return (*outputs, *finals)
