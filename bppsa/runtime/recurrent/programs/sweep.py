"""The sweeps of a recurrence as calls of a program: what `runtime.recurrent.sweep` does with tensors."""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bppsa.codegen.cpu import calls
from bppsa.codegen.cpu.native import NativeKernel
from bppsa.codegen.language.ir import Buffer, Kernel, Kind
from bppsa.codegen.lowering.lower import ColumnRun
from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.recurrent.programs.products import longest, projection
from bppsa.runtime.recurrent.programs.strided import Param, Strided, past
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Sweep


def fits(sweep: Sweep) -> bool:
    """Whether a program has room for the arguments of each call."""
    program, after = sweep.program, sweep.after
    kernels = (program.forward, program.inference, program.backward)
    projected = [runs for _, stream, runs in after.streams if stream.weight is not None]
    words = longest([product.runs for product in after.products], [*projected, [ColumnRun(0, 0, 1)]])
    return calls.fits(max(len(kernel.arguments) for kernel in kernels), words)


@dataclass(frozen=True)
class SweptForward:
    """buffers: what the backward reads, by name. finals: [B, n] each."""

    buffers: dict[str, Strided]
    outputs: list[Strided]
    finals: list[Place]


class SweepCalls:
    """Writes the calls of one sweep. sources: [T, B, n] each."""

    def __init__(
        self, to: Writer, sweep: Sweep, extent: Extent, sources: Sequence[Strided], params: Sequence[Param]
    ) -> None:
        self.to, self.sweep, self.extent, self.sources, self.params = to, sweep, extent, sources, params
        self.depths = {stream.source: stream.depth for stream in sweep.recurrence.streams}

    def forward(self, carries: Sequence[Place | None], *, save: bool) -> SweptForward:
        """carries: [B, n] each, None for zeros. save: for a backward."""
        sweep, program = self.sweep, self.sweep.program
        kernel = program.forward if save else program.inference
        sweep.prepare([kernel, program.backward] if save else [kernel])
        buffers = [kernel.buffer(f"carry{i}") for i in range(len(carries))]
        states = {buffer.name: self.allocated(buffer, kept=save) for buffer in buffers}
        for carry, buffer in zip(carries, buffers, strict=True):
            self.start(carry, self.at_end(buffer, states[buffer.name], first=True), buffer.width)
        arguments = self.arguments(kernel, states, kept=sweep.private if save else ())
        for name, source, weight in sweep.products:
            if name in arguments:
                matrix, whole = self.params[weight.param].logical(weight), [ColumnRun(0, 0, self.depths[source])]
                width = kernel.buffer(name).width
                projection(self.to, self.count, self.sources[source], matrix, whole, arguments[name], width)
        self.run(kernel, arguments)
        outputs = [
            arguments[f"output{k}"] if i is None else self.after_steps(states[f"carry{i}"])
            for k, i in enumerate(program.output_carry)
        ]
        finals = [self.at_end(buffer, states[buffer.name], first=False) for buffer in buffers]
        return SweptForward(states | {name: arguments[name] for name in sweep.private if save}, outputs, finals)

    def backward(
        self, kept: Mapping[str, Strided], g_outputs: Sequence[Strided | None], g_carries: Sequence[Place]
    ) -> dict[str, Strided]:
        """All that the sweep has read and written, by name. g_carries: [B, n] each, of the last carries; they become
        those of the first ones."""
        recurrence, kernel, given = self.sweep.recurrence, self.sweep.program.backward, dict(kept)
        for k, (g, width) in enumerate(zip(g_outputs, recurrence.outputs, strict=True)):
            given[f"g_output{k}"] = self.zeros(width) if g is None else g
        for i, (place, width) in enumerate(zip(g_carries, recurrence.carries, strict=True)):
            given[f"g_carry{i}"] = Strided(place, width, 1)
        arguments = self.arguments(kernel, given)
        self.run(kernel, arguments)
        return given | arguments

    @property
    def count(self) -> int:
        return self.extent.steps * self.extent.rows

    def start(self, value: Place | None, to: Place, width: int) -> None:
        """Copy [B, width], or zeros."""
        count = self.extent.rows * width
        self.to.call(calls.entry_points(self.to.dtype).copy, value, to, 0, 0, 1, count)

    def zeros(self, width: int) -> Strided:
        """One row that every step and row sees."""
        place = self.to.take(width)
        self.to.call(calls.entry_points(self.to.dtype).copy, None, place, 0, 0, 1, width)
        return Strided(place, 0, 0)

    def before_steps(self, state: Strided) -> Strided:
        """[T + 1, B, n] -> [T, B, n]"""
        return state.past(self.to, state.first * self.extent.reverse)

    def after_steps(self, state: Strided) -> Strided:
        return state.past(self.to, state.first * (not self.extent.reverse))

    def at_end(self, buffer: Buffer, state: Strided, *, first: bool) -> Place:
        """Where the first carry is, or the last one."""
        step = self.extent.steps * (first is self.extent.reverse) if buffer.kind is Kind.STATE else 0
        return past(self.to, state.place, step * state.first)

    def allocated(self, buffer: Buffer, *, kept: bool) -> Strided:
        rows, steps = self.extent.rows, self.extent.steps
        lines = {Kind.STREAM: steps * rows, Kind.STATE: (steps + 1) * rows, Kind.RUNNING: rows, Kind.COLUMN_SUM: 1}
        place = self.to.take(lines[buffer.kind] * buffer.width, kept=kept)
        if buffer.kind in (Kind.STREAM, Kind.STATE):
            return Strided(place, rows * buffer.width, buffer.width)
        return Strided(place, buffer.width, 1) if buffer.kind is Kind.RUNNING else Strided(place, 1, 0)

    def arguments(self, kernel: Kernel, given: Mapping[str, Strided], kept: Container[str] = ()) -> dict[str, Strided]:
        """One for every argument of the kernel, in order."""
        known = dict(given)
        for name, source in self.sweep.direct:
            known[name] = self.sources[source]
        return {b.name: known.get(b.name) or self.argument(b, kept=b.name in kept) for b in kernel.arguments}

    def argument(self, buffer: Buffer, *, kept: bool) -> Strided:
        """One that nobody gives: a parameter, or new."""
        if buffer.kind is Kind.VECTOR:  # "param3"
            return Strided(self.params[int(buffer.name[5:])].place, 1, 0)
        if buffer.kind is Kind.WEIGHT:  # "weight3", or transposed "weight3t"
            turned = buffer.name[-1] == "t"
            param = self.params[int(buffer.name[6:-1] if turned else buffer.name[6:])]
            return Strided(param.place, 1, param.shape[-1]) if turned else Strided(param.place, param.shape[-1], 1)
        return self.allocated(buffer, kept=kept)

    def run(self, kernel: Kernel, arguments: Mapping[str, Strided]) -> None:
        runner, (steps, rows) = (
            cast(NativeKernel, self.sweep.runners[kernel.name]),
            (self.extent.steps, self.extent.rows),
        )
        threads = runner.threads(steps, rows)
        firsts = array("q", [argument.first for argument in arguments.values()])
        seconds = array("q", [argument.second for argument in arguments.values()])
        workspace = self.to.take_bytes(runner.workspace_bytes(rows, threads))
        function, dims = runner.entry
        split = runner.splits_columns(rows, threads)
        numbers = (function, firsts, seconds, dims, steps, rows, self.extent.reverse, threads, split, workspace)
        places = [argument.place for argument in arguments.values()]
        self.to.call(calls.sweep(self.to.dtype, len(places)), *numbers, *places)
        self.to.free(workspace)
