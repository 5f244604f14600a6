"""Layers and directions of a recurrence over one sequence, as one call: what nn.RNN, nn.GRU and nn.LSTM are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent.autograd import Result
from bppsa.runtime.recurrent.backward import Asked, backward, prepare
from bppsa.runtime.recurrent.library import Library
from bppsa.runtime.recurrent.newton import Solver
from bppsa.runtime.recurrent.scan.extent import Extent, Given, Shape
from bppsa.runtime.recurrent.sweep import Needs, Passed, Sweep


@dataclass(frozen=True)
class Stack:
    """`sweeps[layer][direction]`; a layer reads the outputs of the one before, side by side.

    Tensors of a call: x [T, B, I]; each of `states` initial states [layers * directions, B, n] or None; the weights of
    every sweep in turn; a dropout mask [T, B, directions * n] for each layer but the last, or none.
    Outputs: y [T, B, directions * n] and the final states.
    """

    sweeps: tuple[tuple[Sweep, ...], ...]
    states: int
    weights: int  # of one sweep
    masked: bool
    extent: Extent
    strategy: Strategy  # of the backward
    pytorch: Callable[[Given], tuple[Tensor, ...]]  # the same call by PyTorch's own ops
    solver: Solver | None = None  # of the forward; None: step by step
    library: Library | None = None  # by which the forward is run in our sweeps' place

    def again(self, tensors: Given) -> tuple[Tensor, ...]:
        return self.pytorch(tensors)

    @property
    def directions(self) -> int:
        return len(self.sweeps[0])

    @property
    def keeps_inputs(self) -> bool:
        """Whether what a layer reads is more than the states of the layer before it."""
        return self.directions > 1 or self.masked

    @property
    def exposed(self) -> int:
        """Without a second direction beside it, y is the states of the last layer."""
        return self.directions == 1

    @property
    def leading(self) -> tuple[int, int]:
        return 1, self.states

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        """The shapes of the outputs, and of what a forward that saves keeps: `[*exposed, *saved]`."""
        steps, rows, layers = self.extent.steps, self.extent.rows, len(self.sweeps)
        recurrence = self.sweeps[0][0].recurrence
        y = (steps, rows, recurrence.outputs[0] * self.directions)
        finals = [(layers * self.directions, rows, width) for width in recurrence.carries]
        passes = [sweep.shapes(self.extent) for sweeps in self.sweeps for sweep in sweeps]
        exposed = [passes[-1].pop(0)] if self.exposed else []
        return [y, *finals], [
            *exposed,
            *[y] * (layers - 1) * self.keeps_inputs,
            *(s for shapes in passes for s in shapes),
        ]

    def forward(self, tensors: Given, *, save: bool) -> Result:
        given = Unpacked(self, tensors)
        if save:
            for sweeps in self.sweeps:
                prepare(sweeps[0], self.strategy, self.extent.steps)
        passes: list[Passed] = []
        inputs: list[Tensor] = []
        x = given.x
        for layer in range(len(self.sweeps)):
            passes += self.passes_of(layer, x, given, save=save)
            outputs = [passed.outputs[0] for passed in passes[-self.directions :]]
            x = outputs[0] if self.directions == 1 else torch.cat(outputs, -1)
            if layer < len(given.masks):
                x = x * given.masks[layer]
            if layer < len(self.sweeps) - 1 and self.keeps_inputs:
                inputs.append(x)
        finals = tuple(torch.stack(state) for state in zip(*(passed.finals for passed in passes), strict=True))
        y = x.detach()  # shares its version counter with the state it may be a view of
        if not save:
            return Result((y, *finals))
        exposed = passes[-1].states[: self.exposed]
        private = [t for p in passes for t in (*p.states, *p.private.values()) if not any(t is e for e in exposed)]
        return Result((y, *finals), (*inputs, *private), exposed)

    def passes_of(self, layer: int, x: Tensor, given: Unpacked, *, save: bool) -> list[Passed]:
        """A layer's forward, by direction."""
        sweeps, directions = self.sweeps[layer], range(self.directions)
        weights = [given.weights(layer, direction) for direction in directions]
        extents = [self.run(direction) for direction in directions]
        if self.library is not None:
            return self.library.layer(layer, sweeps, x, given.states(layer), weights, extents, save=save)
        passes = []
        for direction, sweep in enumerate(sweeps):
            forward = sweep.forward if self.solver is None else self.solver.of(sweep, (layer, direction))
            carries = given.carries(layer, direction)
            passes.append(forward([x], carries, weights[direction], extents[direction], save=save))
        return passes

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> list[Tensor | None]:
        given, needed = Unpacked(self, tensors), Unpacked(self, needs)
        layers = len(self.sweeps)
        kept = (layers - 1) * self.keeps_inputs
        passes = self.repacked(saved[kept:], exposed)
        inputs = [given.x, *(saved[:kept] or (self.extent.after(passed.states[0]) for passed in passes[:-1]))]
        result = Unpacked(self, [None] * len(tensors))
        g_y, g_finals = grads[0], grads[1:]
        g_states: list[list[Tensor]] = [[] for _ in range(self.states)]
        for layer in reversed(range(layers)):
            g_x: Any = None
            for direction in reversed(range(self.directions)):
                at = layer * self.directions + direction
                g_out = None if g_y is None else g_y.chunk(self.directions, -1)[direction]
                asked = Asked(
                    passes[at],
                    [inputs[layer]],
                    given.weights(layer, direction),
                    [g_out],
                    [None if g is None else g[at] for g in g_finals],
                    self.run(direction),
                    Needs((layer > 0 or needed.x,), tuple(needed.weights(layer, direction))),
                )
                gradients = backward(self.sweeps[layer][direction], self.strategy, asked)
                g_x = gradients.sources[0] if g_x is None else g_x + gradients.sources[0]
                result.set_weights(layer, direction, gradients.params)
                for state, g in zip(g_states, gradients.carries, strict=True):
                    state.insert(0, g)
            g_y = g_x if layer == 0 or not given.masks else g_x * given.masks[layer - 1]
        result.tensors[0] = g_y if needed.x else None
        for i, state in enumerate(g_states):
            result.tensors[1 + i] = torch.stack(state) if needs[1 + i] else None
        return result.tensors

    def run(self, direction: int) -> Extent:
        return replace(self.extent, reverse=True) if direction else self.extent

    def repacked(self, saved: Sequence[Tensor], exposed: Sequence[Tensor]) -> list[Passed]:
        """The passes of `forward` out of what it saved, in the same order."""
        *before, last = self.sweeps
        rest = iter(saved)
        passes = [sweep.passed(rest, ()) for sweeps in before for sweep in sweeps]
        return [*passes, *(sweep.passed(rest, exposed) for sweep in last)]


class Unpacked:
    """The tensors of a call by what they are; the same for the flags and gradients that go with them."""

    def __init__(self, stack: Stack, tensors: Sequence) -> None:
        self.stack, self.tensors = stack, list(tensors)
        self.first = 1 + stack.states

    @property
    def x(self) -> Any:  # the tensor, or the flag or gradient in its place
        return self.tensors[0]

    def carries(self, layer: int, direction: int) -> list:
        at = layer * self.stack.directions + direction
        return [None if t is None else t[at] for t in self.tensors[1 : self.first]]

    def states(self, layer: int) -> list:
        """A layer's initial carries in all directions."""
        at = slice(layer * self.stack.directions, (layer + 1) * self.stack.directions)
        return [None if t is None else t[at] for t in self.tensors[1 : self.first]]

    def slot(self, layer: int, direction: int) -> slice:
        start = self.first + (layer * self.stack.directions + direction) * self.stack.weights
        return slice(start, start + self.stack.weights)

    def weights(self, layer: int, direction: int) -> list:
        return self.tensors[self.slot(layer, direction)]

    def set_weights(self, layer: int, direction: int, values: Sequence) -> None:
        self.tensors[self.slot(layer, direction)] = values

    @property
    def masks(self) -> list:
        return self.tensors[self.first + len(self.stack.sweeps) * self.stack.directions * self.stack.weights :]
