"""Run one recurrence over all steps: matmuls before the loop, the sweep, and in the backward the matmuls after it.

Everything is time-major, `[T, B, n]`. Nothing here knows autograd: `forward` leaves what `backward` needs as plain
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.codegen.assembling.program import Program
from bppsa.codegen.language import stretches
from bppsa.codegen.language.ir import Kernel
from bppsa.plan.forward import REPLAYED
from bppsa.runtime.recurrent.after import After, logical
from bppsa.runtime.recurrent.multiply import Multiply, by_torch
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.scan.buffers import PARAMETERS, allocate
from bppsa.runtime.recurrent.scan.extent import Extent, Given, Shape, flat, rows_contiguous

Runner = Callable[..., None]  # (tensors, *, steps, rows, active, reverse), as codegen.interpret.run takes them


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

    sources: Sequence[bool]
    params: Sequence[bool]


@dataclass(frozen=True)
class Gradients:
    sources: list[Tensor | None]  # [T, B, n] each
    carries: list[Tensor]  # [B, n]
    params: list[Tensor | None]


@dataclass(frozen=True)
class Swept:
    """What a backward sweep leaves: gradients of the carries before it, and what the products after it read."""

    carries: list[Tensor]  # [B, n] each
    tensors: dict[str, Tensor]


class Sweep:
    """`build` makes kernels callable: `interpret.run` bound to each, or their machine code. `reduction`: asked
    for by scans only; `diagonal=True` gives that of a simplified J^T. `multiply` computes the products that remain
    after a backward sweep. `boundaries`, `corrections`: `codegen.gpu.native_scan`'s, where kernels run in chunks.
    `in_stretches` runs kernels over stretches of steps, as `language.stretches.run` does."""

    def __init__(
        self,
        program: Program,
        dtype: torch.dtype,
        build: Callable[[Sequence[Kernel]], Sequence[Runner]],
        reduction: Callable[..., Reduction],
        multiply: Multiply = by_torch,
        boundaries: Callable[..., Tensor | None] | None = None,
        corrections: Callable[[Tensor, Tensor], Tensor | None] | None = None,
        in_stretches: Callable[..., None] = stretches.run,
    ) -> None:
        self.program, self.recurrence, self.dtype = program, program.recurrence, dtype
        self.build, self.reduction = build, reduction
        self.boundaries, self.corrections, self.in_stretches = boundaries, corrections, in_stretches
        self.runners: dict[str, Runner] = {}
        streams = list(enumerate(self.recurrence.streams))
        read = {b.name for b in program.backward.arguments}
        self.products = [(f"stream{k}", s.source, s.weight) for k, s in streams if s.weight is not None]
        self.private = [name for name in (*[name for name, _, _ in self.products], "saved") if name in read]
        self.direct = [(f"stream{k}" if s.weight is None else f"source{s.source}", s.source) for k, s in streams]
        self.widths = [program.backward.buffer(name).width for name in self.private]
        self.after = After(program, multiply)

    def forward(
        self,
        sources: Given,
        carries: Given,
        params: Sequence[Tensor],
        extent: Extent,
        *,
        save: bool,
    ) -> Passed:
        """sources: [T, B, n] each, None where no stream reads them; carries: [B, n] each, None for zeros; params as the
        recurrence numbers them."""
        kernel = self.program.forward if save else self.program.inference
        self.prepare([kernel, self.program.backward] if save else [kernel])
        states = self.started(kernel, carries, extent)
        tensors = self.swept_forward(kernel, states, sources, params, extent)
        return self.passing(states, tensors, extent, save=save)

    def replay(
        self,
        states: Sequence[Tensor],
        sources: Given,
        params: Sequence[Tensor],
        extent: Extent,
        finals: Sequence[Tensor] | None = None,
    ) -> Passed:
        """What `forward` leaves, from the states of all steps: none waits for another. finals: the last ones, where
        they are at hand."""
        kernel = self.program.replay
        self.prepare([kernel, self.program.backward])
        chunk = {} if self.boundaries is None else {"chunk": REPLAYED}
        tensors = self.swept_forward(kernel, states, sources, params, extent, **chunk)
        return self.passing(states, tensors, extent, finals, save=True)

    def swept_forward(
        self,
        kernel: Kernel,
        states: Sequence[Tensor],
        sources: Given,
        params: Sequence[Tensor],
        extent: Extent,
        **chunk: int,
    ) -> dict[str, Tensor]:
        """All that a forward kernel is given and has written. chunk: as for `backward`; then the states are [C, chunk +
        1, B, n], each chunk's with what enters it."""
        given = {f"carry{i}": state for i, state in enumerate(states)}
        tensors = self.named(kernel, given, sources, params, extent)
        self.multiply(sources, params, tensors)
        if kernel.groups:
            self.run(kernel, tensors, extent, **chunk)
        return tensors

    def multiply(self, sources: Given, params: Sequence[Tensor], streams: Mapping[str, Tensor]) -> None:
        """Write the products of all steps into those of the streams that are there."""
        for name, source, weight in self.products:
            if name in streams:
                torch.mm(flat(sources[source]), logical(params, weight), out=flat(streams[name]))

    def passing(
        self,
        states: Sequence[Tensor],
        tensors: Mapping[str, Tensor],
        extent: Extent,
        finals: Sequence[Tensor] | None = None,
        *,
        save: bool,
    ) -> Passed:
        """states: [T+1, B, n] each; tensors: what a kernel has written."""
        outputs = [
            tensors[f"output{k}"] if i is None else extent.after(states[i])
            for k, i in enumerate(self.program.output_carry)
        ]
        private = {name: tensors[name] for name in self.private} if save else {}
        return Passed(tuple(outputs), tuple(finals or map(extent.end, states)), tuple(states), private)

    def started(self, kernel: Kernel, carries: Given, extent: Extent) -> list[Tensor]:
        """The states that a forward kernel writes, with what enters the first step."""
        states = [allocate(kernel.buffer(f"carry{i}"), extent, self.dtype) for i in range(len(self.recurrence.carries))]
        for state, carry in zip(states, carries, strict=True):
            extent.start(state, carry)
        return states

    def backward(
        self,
        passed: Passed,
        sources: Given,
        params: Sequence[Tensor],
        g_outputs: Given,
        g_finals: Given,
        extent: Extent,
        needs: Needs,
        **chunk: int,
    ) -> Gradients:
        """g_outputs: [T, B, n] each, g_finals: [B, n] each; None for zeros. chunk: for kernels that run in chunks of so
        many steps; then g_finals enter each chunk, [C, B, n], and so do the gradients of carries leave them."""
        swept = self.swept(passed, sources, params, g_outputs, g_finals, extent, **chunk)
        return self.completed(swept, sources, params, extent, needs)

    def swept(
        self,
        passed: Passed,
        sources: Given,
        params: Sequence[Tensor],
        g_outputs: Given,
        g_finals: Given,
        extent: Extent,
        **chunk: int,
    ) -> Swept:
        """The first half of `backward`."""
        kernel, given = self.program.backward, dict(passed.private)
        for i, state in enumerate(passed.states):
            given[f"carry{i}"] = state
        cotangents, carries = self.cotangents(g_outputs, g_finals, extent, **chunk)
        given |= cotangents
        tensors = self.named(kernel, given, sources, params, extent)
        self.run(kernel, tensors, extent, **chunk)
        return Swept(carries, given | tensors)  # a matmul may read a state that the sweep does not

    def cotangents(
        self, g_outputs: Given, g_finals: Given, extent: Extent, **chunk: int
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """What a backward kernel is given of them by name, and those of the carries, which it writes too."""
        given = {
            f"g_output{k}": self.zeros(extent, k) if g is None else rows_contiguous(g) for k, g in enumerate(g_outputs)
        }
        carries = []
        for i, (g, width) in enumerate(zip(g_finals, self.recurrence.carries, strict=True)):
            if g is None:
                g = torch.zeros((extent.rows, width), dtype=self.dtype, device=extent.device)
            elif not chunk:  # what enters chunks was made for them
                g = contiguous_copy(g)
            carries.append(g)
            given[f"g_carry{i}"] = g
        return given, carries

    def completed(
        self, swept: Swept, sources: Given, params: Sequence[Tensor], extent: Extent, needs: Needs
    ) -> Gradients:
        """The second half of `backward`."""
        g_sources, g_params = self.after(swept.tensors, extent, sources, params, needs.sources, needs.params)
        return Gradients(g_sources, swept.carries, g_params)

    def zeros(self, extent: Extent, output: int) -> Tensor:
        """The cotangent of an output that nobody reads: one row of zeros that every step and row sees."""
        width = self.recurrence.outputs[output]
        return torch.zeros((1, 1, width), dtype=self.dtype, device=extent.device).expand(
            extent.steps, extent.rows, width
        )

    def shapes(self, extent: Extent) -> list[Shape]:
        """The shapes of the states and the private buffers that a forward which saves leaves."""
        states = [(extent.steps + 1, extent.rows, width) for width in self.recurrence.carries]
        return [*states, *((extent.steps, extent.rows, width) for width in self.widths)]

    def passed(self, saved: Iterable[Tensor], exposed: Sequence[Tensor]) -> Passed:
        """Put together again what a caller kept of a forward: `exposed`, the states that are outputs, if it kept those
        apart; `saved`, the other states and the private buffers. An iterator is left at what comes after them."""
        shown, rest, apart = iter(exposed), iter(saved), self.program.output_carry if exposed else ()
        states = tuple(next(shown if i in apart else rest) for i in range(len(self.recurrence.carries)))
        return Passed((), (), states, {name: next(rest) for name in self.private})

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Build what is missing; what a backward will need is built with its forward, where an error can be met."""
        missing = [kernel for kernel in kernels if kernel.name not in self.runners]
        if missing:
            self.runners |= {k.name: runner for k, runner in zip(missing, self.build(missing), strict=True)}

    def run(self, kernel: Kernel, tensors: Mapping[str, Tensor], extent: Extent, **chunk: int) -> None:
        self.runners[kernel.name](
            list(tensors.values()),
            steps=extent.steps,
            rows=extent.rows,
            active=extent.active,
            reverse=extent.reverse,
            **chunk,
        )

    def named(
        self,
        kernel: Kernel,
        given: dict[str, Tensor],
        sources: Given,
        params: Sequence[Tensor],
        extent: Extent,
        apart: Container[str] = (),
    ) -> dict[str, Tensor]:
        """A tensor for every argument of the kernel but those `apart`, in order: given ones, the caller's, and new ones
        for the rest."""
        for name, source in self.direct:
            given[name] = rows_contiguous(sources[source])
        tensors = {}
        for b in kernel.arguments:
            if b.name in apart:
                continue
            known = given.get(b.name)
            if known is None:
                make = PARAMETERS.get(b.kind)
                known = allocate(b, extent, self.dtype) if make is None else make(params, b.name)
            tensors[b.name] = known
        return tensors


def contiguous_copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
