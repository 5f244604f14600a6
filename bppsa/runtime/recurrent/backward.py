"""A recurrence's backward by a strategy: one sweep over all steps, or a scan over chunks of them in three phases.

    reduce   each chunk to one pair (J^T, b)                                   codegen.reduction, runtime.reduce
    scan     over the pairs, for the cotangent that enters each chunk          runtime.scan_levels, codegen.gpu
    sweep    all chunks side by side, each from the cotangent that enters it   runtime.sweep

Chunks of one step are the paper's own scan: the reduction forms J^T of every step, and the sweep has no loop left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bppsa.common.chain import Structure
from bppsa.decisions import warn_once
from bppsa.plan.strategy import Division, Strategy, divide
from bppsa.runtime.recurrent.reduce import Reduction
from bppsa.runtime.recurrent.scan.chunks import Chunks
from bppsa.runtime.recurrent.scan.extent import Extent, Given, rows_contiguous
from bppsa.runtime.recurrent.scan.pairs import REAL, Pair, ScaledRows
from bppsa.runtime.recurrent.scan.scan_levels import exclusive
from bppsa.runtime.recurrent.sweep import Gradients, Needs, Passed, Sweep


@dataclass(frozen=True)
class Asked:
    """The arguments of `Sweep.backward`."""

    passed: Passed
    sources: Given
    params: Sequence[Tensor]
    g_outputs: Given
    g_finals: Given
    extent: Extent
    needs: Needs

    def of(self, sweep: Sweep, **chunk: int) -> Gradients:
        return sweep.backward(
            self.passed,
            self.sources,
            self.params,
            self.g_outputs,
            self.g_finals,
            self.extent,
            self.needs,
            **chunk,
        )


def backward(sweep: Sweep, strategy: Strategy, asked: Asked) -> Gradients:
    division = divide(strategy, asked.extent.steps)
    if division.count > 1:
        scan = side_by_side if sweep.boundaries is None else in_place
        try:
            return scan(sweep, division, asked)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            warn_once(f"bppsa: one sweep runs where {strategy} needs more memory than there is; longer chunks help")
    return asked.of(sweep)


def prepare(sweep: Sweep, strategy: Strategy, steps: int) -> None:
    """Build what the backward will need beside its sweep, where an error can be met."""
    if divide(strategy, steps).count > 1:
        sweep.reduction()


def is_out_of_memory(error: RuntimeError) -> bool:
    """A CPU's allocator has no error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def side_by_side(sweep: Sweep, division: Division, asked: Asked) -> Gradients:
    """Runs kernels that know no chunks: each chunk is given a row of its own."""
    extent, reduction = asked.extent, sweep.reduction()
    chunks = Chunks(extent, division.length, division.count)
    private = {name: chunks.cut(tensor) for name, tensor in asked.passed.private.items()}
    cut = replace(
        asked,
        passed=Passed((), (), tuple(map(chunks.cut_state, asked.passed.states)), private),
        sources=[t if t is None else chunks.cut(t) for t in asked.sources],
        g_outputs=[t if t is None else chunks.cut(t) for t in asked.g_outputs],
        extent=chunks.inner,
    )
    running = reduction.start(cut.extent.rows, extent.device)
    reduce(sweep, reduction, running.flatten(0, 1), cut)
    pairs = reduction.pair(chunks.unsorted(running, 0))
    entering = scanned(division, pairs, final(sweep, asked), reduction.structure, extent)
    g_chunks = chunks.sorted(entering.flatten(0, 1), 0).to(sweep.dtype).split(list(reduction.widths), 1)
    found = replace(cut, g_finals=g_chunks).of(sweep)
    first = extent.rows * (chunks.count - 1) if extent.reverse else 0
    carries = [chunks.unsorted(g, 0)[first : first + extent.rows] for g in found.carries]
    return Gradients([g if g is None else chunks.joined(g) for g in found.sources], carries, found.params)


def in_place(sweep: Sweep, division: Division, asked: Asked) -> Gradients:
    """Runs kernels that find the chunks of a whole sequence themselves."""
    assert sweep.boundaries is not None
    extent, reduction = asked.extent, sweep.reduction()
    running = reduction.start(division.count * extent.rows, extent.device)  # chunk by chunk, in the order of time
    by_chunk = running.view(division.count, -1, running.shape[-1])
    reduce(sweep, reduction, by_chunk, asked, chunk=division.length)
    g_final, by_row = final(sweep, asked), running.unflatten(0, (division.count, extent.rows))
    entering = sweep.boundaries(division.scan, by_row, g_final, reverse=extent.reverse)
    if entering is None:
        entering = scanned(division, reduction.pair(running), g_final, reduction.structure, extent)
    g_chunks = entering.to(sweep.dtype).split(list(reduction.widths), -1)
    found = replace(asked, g_finals=g_chunks).of(sweep, chunk=division.length)
    first = -1 if extent.reverse else 0
    return Gradients(found.sources, [g[first] for g in found.carries], found.params)


def pair_of(sweep: Sweep, asked: Asked) -> Pair:
    """The pair of all steps at once, [B, ...]; g_finals are not read."""
    reduction, extent = sweep.reduction(), asked.extent
    running = reduction.start(extent.rows, extent.device)
    if sweep.boundaries is None:
        reduce(sweep, reduction, running.flatten(0, 1), asked)
    else:
        reduce(sweep, reduction, running.view(1, -1, running.shape[-1]), asked, chunk=extent.steps)
    return reduction.pair(running)


def reduce(sweep: Sweep, reduction: Reduction, running: Tensor, asked: Asked, **chunk: int) -> None:
    """Run the reduction kernel on `running`, [..., rows * columns, pitch], in its own precision."""
    extent, dtype = asked.extent, reduction.dtype
    given = {f"carry{i}": state for i, state in enumerate(asked.passed.states)} | asked.passed.private
    given |= {f"g_output{k}": sweep.zeros(extent, k) if g is None else g for k, g in enumerate(asked.g_outputs)}
    given = {name: rows_contiguous(tensor.to(dtype)) for name, tensor in given.items()} | reduction.buffers(running)
    sources = [t if t is None else t.to(dtype) for t in asked.sources]
    params = [p.to(dtype) for p in asked.params]
    tensors = sweep.named(reduction.kernel, given | reduction.vectors(params), sources, params, extent)
    reduction.run(
        list(tensors.values()),
        steps=extent.steps,
        rows=extent.rows,
        active=extent.active,
        reverse=extent.reverse,
        columns=reduction.columns,
        **chunk,
    )


def scanned(division: Division, pairs: Pair, g_final: Tensor, structure: Structure, extent: Extent) -> Tensor:
    """The cotangent that enters each chunk, [C, B, N], chunks in the order of time. pairs: [C * B, ...], likewise."""

    def turned(chunks: Tensor) -> Tensor:
        """The last chunk in the recurrence's own direction first, and back."""
        return chunks if extent.reverse else chunks.flip(0)

    by_chunk = pairs.map(lambda rows: turned(rows.unflatten(0, (division.count, extent.rows))))
    return by_carry(turned(exclusive(division.scan, by_chunk, by_block(g_final, structure)).plain()), structure)


def by_block(g: Tensor, structure: Structure) -> ScaledRows:
    """A cotangent of the carries, [B, N], as pairs meet it: [B, count, m, 1]."""
    return ScaledRows.of(g.to(REAL)[:, structure.order].unsqueeze(-1))


def by_carry(blocks: Tensor, structure: Structure) -> Tensor:
    """[..., count, m, 1] -> [..., N]"""
    g = blocks.new_empty(*blocks.shape[:-3], structure.order.numel())
    g[..., structure.order] = blocks.squeeze(-1)
    return g


def final(sweep: Sweep, asked: Asked) -> Tensor:
    """The cotangent after the last step, [B, N], all carries side by side."""
    rows, device = asked.extent.rows, asked.extent.device
    parts = [
        torch.zeros(rows, width, dtype=sweep.dtype, device=device) if g is None else g
        for g, width in zip(asked.g_finals, sweep.recurrence.carries, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
