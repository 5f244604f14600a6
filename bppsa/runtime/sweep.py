"""Run one recurrence over all steps: matmuls before the loop, the sweep, and in the backward the matmuls after it.

Everything is time-major, `[T, B, n]`. Nothing here knows autograd: `forward` leaves what `backward` needs as plain tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.chain import Weight
from bppsa.codegen.ir import Kernel, Kind
from bppsa.codegen.lower import Run
from bppsa.codegen.program import Program, Rows
from bppsa.runtime import pool

Shape = tuple[int, ...]
Runner = Callable[..., None]  # (tensors, *, steps, rows, active, reverse), as codegen.interpret.run takes them


@dataclass(frozen=True)
class Extent:
    """The steps and rows of one call. Packed sequences: row b has `lengths[b]` steps, longest first, and `active[t]`
    rows take part in step t; the tensors are padded to `[T, B, n]`."""

    steps: int
    rows: int
    reverse: bool = False
    active: Tensor | None = None  # int64 [T]
    lengths: Tensor | None = None  # int64 [B]

    def before(self, state: Tensor) -> Tensor:
        """[T+1, B, n] -> [T, B, n], the rows that the steps start from."""
        return state[self.reverse : self.reverse + self.steps]

    def after(self, state: Tensor) -> Tensor:
        return state[1 - self.reverse : 1 - self.reverse + self.steps]

    def start(self, state: Tensor, value: Tensor | None) -> None:
        """Write the initial carry, `[B, n]`, where each row's first step reads it; `state`: [T+1, B, n], or [B, n]."""
        if state.dim() == 2:
            first = state
        elif self.reverse and self.lengths is not None:
            state[self.lengths, torch.arange(self.rows)] = state.new_zeros(()) if value is None else value
            return
        else:
            first = state[self.steps if self.reverse else 0]
        first.zero_() if value is None else first.copy_(value)

    def end(self, state: Tensor) -> Tensor:
        """The carry after each row's last step, in storage of its own."""
        if state.dim() == 2:
            return state
        if self.lengths is not None and not self.reverse:
            return state[self.lengths, torch.arange(self.rows)]
        return state[0 if self.reverse else self.steps].clone()


@dataclass(frozen=True)
class Passed:
    """What a forward sweep leaves. `states[i]` is [T+1, B, n]; outputs that are a carry are views of it."""

    outputs: tuple[Tensor, ...]  # [T, B, n] each
    finals: tuple[Tensor, ...]  # [B, n] each
    states: tuple[Tensor, ...]
    private: dict[str, Tensor]  # buffers the backward reads and nobody else sees


@dataclass(frozen=True)
class Needs:
    """Which gradients are asked for."""

    sources: tuple[bool, ...]
    params: tuple[bool, ...]


@dataclass(frozen=True)
class Gradients:
    sources: list[Tensor | None]  # [T, B, n]
    carries: list[Tensor]  # [B, n]
    params: list[Tensor | None]


class Sweep:
    """`build` makes kernels callable: `codegen.interpret.run` bound to each, or their machine code."""

    def __init__(self, program: Program, dtype: torch.dtype, build: Callable[[Sequence[Kernel]], Sequence[Runner]]) -> None:
        self.program, self.recurrence, self.dtype = program, program.recurrence, dtype
        self.build = build
        self.runners: dict[str, Runner] = {}
        read = {b.name for b in program.backward.arguments}
        self.products = {f"stream{k}": s for k, s in enumerate(self.recurrence.streams) if s.weight is not None}
        self.private = [name for name in (*self.products, "saved") if name in read]

    def forward(
        self, sources: Sequence[Tensor | None], carries: Sequence[Tensor | None], params: Sequence[Tensor], extent: Extent, *, save: bool
    ) -> Passed:
        """sources: [T, B, n] each, None where no stream reads them; carries: [B, n] each, None for zeros; params as the recurrence numbers them."""
        kernel = self.program.forward if save else self.program.inference
        self.prepare([kernel, self.program.backward] if save else [kernel])
        tensors = allocate(kernel, self.inputs(sources, params), extent, self.dtype)
        for name, stream in self.products.items():
            torch.mm(flat(sources[stream.source]), logical(params, stream.weight), out=flat(tensors[name]))
        states = tuple(tensors[f"carry{i}"] for i in range(len(carries)))
        for state, carry in zip(states, carries, strict=True):
            extent.start(state, carry)
        self.run(kernel, tensors, extent)
        outputs = tuple(
            tensors[f"output{k}"] if i is None else extent.after(states[i]) for k, i in enumerate(self.program.output_carry)
        )
        private = {name: tensors[name] for name in self.private} if save else {}
        return Passed(outputs, tuple(map(extent.end, states)), states, private)

    def backward(
        self,
        passed: Passed,
        sources: Sequence[Tensor],
        params: Sequence[Tensor],
        g_outputs: Sequence[Tensor | None],
        g_finals: Sequence[Tensor | None],
        extent: Extent,
        needs: Needs,
    ) -> Gradients:
        """g_outputs: [T, B, n] each, g_finals: [B, n] each; None for zeros."""
        dtype = self.dtype
        given = self.inputs(sources, params) | passed.private
        given |= {f"carry{i}": state for i, state in enumerate(passed.states)}
        for k, (g, width) in enumerate(zip(g_outputs, self.recurrence.outputs, strict=True)):
            zero = torch.zeros((1, 1, width), dtype=dtype).expand(extent.steps, extent.rows, width)
            given[f"g_output{k}"] = zero if g is None else rows_contiguous(g)
        carries = [
            torch.zeros((extent.rows, width), dtype=dtype) if g is None else g.clone(memory_format=torch.contiguous_format)
            for g, width in zip(g_finals, self.recurrence.carries, strict=True)
        ]
        given |= {f"g_carry{i}": g for i, g in enumerate(carries)}
        tensors = allocate(self.program.backward, given, extent, dtype)
        self.run(self.program.backward, tensors, extent)
        after = After(self.program, tensors, extent, sources, params)
        return Gradients(after.of_sources(needs.sources), carries, after.of_params(needs.params))

    def shapes(self, extent: Extent) -> list[Shape]:
        """Of the states and the private buffers that a forward which saves leaves."""
        states = [(extent.steps + 1, extent.rows, width) for width in self.recurrence.carries]
        return states + [(extent.steps, extent.rows, self.program.backward.buffer(name).width) for name in self.private]

    def passed(self, saved: Sequence[Tensor], exposed: Sequence[Tensor]) -> Passed:
        """Put together again what a caller kept of a forward: `exposed`, the states that are outputs; `saved`, the other
        states and the private buffers."""
        shown, rest = iter(exposed), iter(saved)
        states = tuple(next(shown if i in self.program.output_carry else rest) for i in range(len(self.recurrence.carries)))
        return Passed((), (), states, {name: next(rest) for name in self.private})

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Build what is missing; what a backward will need is built with its forward, where an error can be met."""
        missing = [kernel for kernel in kernels if kernel.name not in self.runners]
        if missing:
            self.runners |= {k.name: runner for k, runner in zip(missing, self.build(missing), strict=True)}

    def run(self, kernel: Kernel, tensors: Mapping[str, Tensor], extent: Extent) -> None:
        arguments = [tensors[b.name] for b in kernel.arguments]
        self.runners[kernel.name](arguments, steps=extent.steps, rows=extent.rows, active=extent.active, reverse=extent.reverse)

    def inputs(self, sources: Sequence[Tensor], params: Sequence[Tensor]) -> dict[str, Tensor]:
        """The caller's tensors under the names the kernels know them by."""
        streams = enumerate(self.recurrence.streams)
        given = {f"stream{k}": rows_contiguous(sources[s.source]) for k, s in streams if s.weight is None}
        for j, param in enumerate(params):
            if param.dim() < 2 or param.shape[0] == 1:
                given[f"param{j}"] = param.reshape(-1).contiguous()
            if param.dim() == 2:
                given[f"weight{j}"], given[f"weight{j}t"] = param, param.t()
        return given


class After:
    """The matmuls after a backward sweep: gradients of parameters as products over all rows and steps at once."""

    def __init__(
        self, program: Program, tensors: Mapping[str, Tensor], extent: Extent, sources: Sequence[Tensor], params: Sequence[Tensor]
    ) -> None:
        self.program, self.streams = program, program.recurrence.streams
        self.tensors, self.extent, self.sources, self.params = tensors, extent, sources, params

    def cotangents(self, run: Run) -> Tensor:
        """[T * B, width]"""
        return flat(self.tensors["cotangents"])[:, run.column : run.column + run.width]

    def of_sources(self, needed: Sequence[bool]) -> list[Tensor | None]:
        grads: list[Tensor | None] = [None] * len(self.sources)
        for stream, runs in zip(self.streams, self.program.stream_runs, strict=True):
            i = stream.source
            if not needed[i] or runs is None:
                continue
            if grads[i] is None:
                grads[i] = torch.zeros_like(self.sources[i], memory_format=torch.contiguous_format)
            out = flat(grads[i])
            for run in runs:
                if stream.weight is None:
                    out[:, run.start : run.start + run.width] += self.cotangents(run)
                else:
                    weight = logical(self.params, stream.weight)[:, run.start : run.start + run.width]
                    out.addmm_(self.cotangents(run), weight.t())
        return grads

    def of_params(self, needed: Sequence[bool]) -> list[Tensor | None]:
        grads: list[Tensor | None] = [None] * len(self.params)
        for j, param in enumerate(self.params):
            if needed[j] and j in self.touched():
                grads[j] = torch.zeros_like(param, memory_format=torch.contiguous_format)
        for weight, left, runs in self.products():
            grad = grads[weight.param]
            if grad is None:
                continue
            for run in runs:
                columns = (grad.t() if weight.transposed else grad)[:, run.start : run.start + run.width]
                columns.addmm_(left.t(), self.cotangents(run))
        for j, runs in self.program.sum_runs:
            grad = grads[j]
            if grad is not None:
                parts = [self.tensors["sums"][run.column : run.column + run.width] for run in runs]
                grad += torch.cat(parts).sum_to_size(grad.numel()).view_as(grad)
        return grads

    def products(self) -> Iterator[tuple[Weight, Tensor, tuple[Run, ...]]]:
        """(weight, left operand [T * B, K], where its right operand's columns stand among the cotangents)"""
        for outer in self.program.outers:
            yield outer.weight, self.rows(outer.left), outer.runs
        for stream, runs in zip(self.streams, self.program.stream_runs, strict=True):
            if stream.weight is not None and runs is not None:
                yield stream.weight, flat(self.sources[stream.source]), runs

    def touched(self) -> set[int]:
        return {weight.param for weight, _, _ in self.products()} | {j for j, _ in self.program.sum_runs}

    def rows(self, at: Rows) -> Tensor:
        tensor = self.tensors[at.buffer]
        if at.buffer.startswith("carry"):
            tensor = self.extent.after(tensor) if at.after else self.extent.before(tensor)
        return flat(tensor)[:, at.column : at.column + at.width]


def allocate(kernel: Kernel, given: Mapping[str, Tensor], extent: Extent, dtype: torch.dtype) -> dict[str, Tensor]:
    """`given`, and a tensor for every other buffer of the kernel. Rows that a packed batch never visits read as zeros."""
    tensors = dict(given)
    shapes = {
        Kind.STREAM: (extent.steps, extent.rows),
        Kind.STATE: (extent.steps + 1, extent.rows),
        Kind.RUNNING: (extent.rows,),
        Kind.COLUMN_SUM: (),
    }
    for b in kernel.arguments:
        if b.name in tensors:
            continue
        shape = (*shapes[b.kind], b.width)
        if extent.active is not None:
            tensors[b.name] = torch.zeros(shape, dtype=dtype)
        elif b.kind is Kind.STREAM and not b.name.startswith("output"):
            tensors[b.name] = pool.take(math.prod(shape), dtype).view(shape)
        else:
            tensors[b.name] = torch.empty(shape, dtype=dtype)
    return tensors


def flat(rows: Tensor) -> Tensor:
    """[T, B, n] -> [T * B, n]"""
    return rows.reshape(-1, rows.shape[-1])


def rows_contiguous(tensor: Tensor) -> Tensor:
    """Kernels take any strides but of the last dimension."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def logical(params: Sequence[Tensor], weight: Weight) -> Tensor:
    """The right operand of a product, [K, N]."""
    return params[weight.param].t() if weight.transposed else params[weight.param]
