"""A stack's forward and its backward as programs: its layers and directions one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.codegen.cpu import calls
from bppsa.runtime.programs.program import CallProgram, Place, Writer
from bppsa.runtime.recurrent.programs.after import AfterCalls
from bppsa.runtime.recurrent.programs.strided import Param, Strided, past
from bppsa.runtime.recurrent.programs.sweep import SweepCalls, SweptForward
from bppsa.runtime.recurrent.scan.extent import Shape
from bppsa.runtime.recurrent.stack import Stack, Unpacked


@dataclass(frozen=True, eq=False)
class StackForward:
    """program: takes the stack's tensors that there are, and its outputs. inputs: what each layer has read."""

    program: CallProgram
    passes: list[SweptForward]
    inputs: list[Strided]


class StackCalls:
    """given: which of the stack's tensors there are. weights: the shapes of all."""

    def __init__(self, stack: Stack, given: Sequence[bool], weights: Sequence[Shape]) -> None:
        self.stack, self.extent, self.weights = stack, stack.extent, weights
        dtype = stack.sweeps[0][0].dtype
        self.to = Writer(dtype, calls.runner(dtype))
        first = 1 + stack.states
        places = [self.to.tensor() if there else None for there in given]
        params = [Param(place, shape) for place, shape in zip(places[first:], weights, strict=False) if place]
        self.tensors = Unpacked(stack, [*places[:first], *params, *places[first + len(weights) :]])
        self.count = self.extent.steps * self.extent.rows

    def forward(self, *, save: bool) -> StackForward:
        stack, to, layers = self.stack, self.to, len(self.stack.sweeps)
        y, *finals = [to.tensor() for _ in range(1 + stack.states)]
        x = self.rows(self.tensors.x, stack.sweeps[0][0].recurrence.streams[0].depth)
        inputs: list[Strided] = []
        passes: list[SweptForward] = []
        for layer in range(layers):
            inputs.append(x)
            outputs = []
            for direction in range(stack.directions):
                sweep = self.sweep(layer, direction, x)
                at, widths = self.at(layer, direction), sweep.sweep.recurrence.carries
                carries = [self.slot(s, at, width) for s, width in zip(self.initial, widths, strict=True)]
                passes.append(sweep.forward(carries, save=save))
                outputs.append(passes[-1].outputs[0])
                for final, place, width in zip(finals, passes[-1].finals, widths, strict=True):
                    sweep.start(place, past(to, final, at * self.extent.rows * width), width)
            is_masked = layer < len(self.tensors.masks)
            x = self.joined(layer, outputs, y if layer == layers - 1 else None, kept=save and not is_masked)
            if is_masked:
                x = self.masked(layer, x, kept=save)
        return StackForward(to.program(), passes, inputs)

    def backward(self, forward: StackForward, cotangents: Sequence[bool], needs: Sequence[bool]) -> CallProgram:
        """The program takes the stack's tensors, the cotangents that there are, and room for the gradients that are
        asked for. cotangents: of which outputs there are some."""
        stack, to = self.stack, self.to
        g_y, *g_finals = [to.tensor() if there else None for there in cotangents]
        places = [to.tensor() if need else None for need in needs]
        g_x, g_initial, first = places[0], places[1 : 1 + stack.states], 1 + stack.states
        room = [place and Param(place, shape) for place, shape in zip(places[first:], self.weights, strict=False)]
        wanted, done = Unpacked(stack, [*places[:first], *room]), set[Place]()
        for layer in reversed(range(len(stack.sweeps))):
            below = self.to.take(self.count * self.depth(layer)) if layer else g_x
            for direction in reversed(range(stack.directions)):
                sweep = self.sweep(layer, direction, forward.inputs[layer])
                at, recurrence = self.at(layer, direction), sweep.sweep.recurrence
                g_carries = []
                for g, initial, width in zip(g_finals, g_initial, recurrence.carries, strict=True):
                    g_carries.append(self.slot(initial, at, width) or to.take(self.extent.rows * width))
                    sweep.start(self.slot(g, at, width), g_carries[-1], width)
                g_out = None if g_y is None else self.columns(g_y, direction, recurrence.outputs[0])
                swept = sweep.backward(forward.passes[at].buffers, [g_out], g_carries)
                AfterCalls(sweep, swept, done).write([below], wanted.weights(layer, direction))
            if below is not None and layer and self.tensors.masks:
                self.masked(layer - 1, self.rows(below, self.depth(layer)), below)
            g_y = below
        assert done.issuperset(place for place in (g_x, *places[first:]) if place is not None), "no part of a gradient"
        return to.program()

    @property
    def initial(self) -> list[Place | None]:
        return self.tensors.tensors[1 : 1 + self.stack.states]

    def at(self, layer: int, direction: int) -> int:
        return layer * self.stack.directions + direction

    def depth(self, layer: int) -> int:
        """Columns of what a layer reads."""
        return self.stack.sweeps[layer][0].recurrence.streams[0].depth

    def rows(self, place: Place, pitch: int) -> Strided:
        return Strided(place, self.extent.rows * pitch, pitch)

    def columns(self, place: Place, direction: int, width: int) -> Strided:
        """A direction's columns of rows [T, B, directions * width]."""
        return self.rows(place, self.stack.directions * width).past(self.to, direction * width)

    def slot(self, states: Place | None, at: int, width: int) -> Place | None:
        """[layers * directions, B, width] -> [B, width]"""
        return states and past(self.to, states, at * self.extent.rows * width)

    def sweep(self, layer: int, direction: int, x: Strided) -> SweepCalls:
        weights = self.tensors.weights(layer, direction)
        return SweepCalls(self.to, self.stack.sweeps[layer][direction], self.stack.run(direction), [x], weights)

    def masked(self, layer: int, rows: Strided, to: Place | None = None, *, kept: bool = False) -> Strided:
        """Contiguous rows times the layer's mask."""
        count = self.count * rows.second
        place = to or self.to.take(count, kept=kept)
        self.to.call(calls.entry_points(self.to.dtype).scale, rows.place, self.tensors.masks[layer], place, count)
        return self.rows(place, rows.second)

    def joined(self, layer: int, outputs: Sequence[Strided], y: Place | None, *, kept: bool) -> Strided:
        """The outputs of all directions side by side, in y where that is given: what the next layer reads."""
        if y is None and len(outputs) == 1:
            return outputs[0]
        width = self.stack.sweeps[layer][0].recurrence.outputs[0]
        pitch = width * len(outputs)
        place = y or self.to.take(self.count * pitch, kept=kept)
        for direction, rows in enumerate(outputs):
            target = past(self.to, place, direction * width)
            self.to.call(
                calls.entry_points(self.to.dtype).copy, rows.place, target, rows.second, pitch, self.count, width
            )
        return self.rows(place, pitch)
