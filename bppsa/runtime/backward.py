"""A recurrence's backward by a strategy: one sweep over all steps, or a scan over chunks of them in three phases.

    reduce   each chunk to one pair (J^T, b)                                       codegen.reduction, runtime.reduce
    scan     over the pairs, for the cotangent that enters each chunk              runtime.scan_levels
    sweep    all chunks side by side, each from the cotangent that enters it       runtime.sweep, as rows of one call

Chunks of one step are the paper's own scan: the reduction forms J^T of every step, and the sweep has no loop left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.chain import Structure
from bppsa.plan.strategy import Division, Strategy, divide
from bppsa.runtime.chunks import Chunks
from bppsa.runtime.extent import Extent, Given
from bppsa.runtime.pairs import REAL, Pair, Rows
from bppsa.runtime.reduce import Reduction
from bppsa.runtime.scan_levels import exclusive
from bppsa.runtime.sweep import Gradients, Needs, Passed, Sweep


def backward(
    sweep: Sweep,
    strategy: Strategy,
    passed: Passed,
    sources: Given,
    params: Sequence[Tensor],
    g_outputs: Given,
    g_finals: Given,
    extent: Extent,
    needs: Needs,
) -> Gradients:
    """As `Sweep.backward`, whose arguments these are."""
    division = divide(strategy, extent.steps)
    if division.count == 1:
        return sweep.backward(passed, sources, params, g_outputs, g_finals, extent, needs)
    chunks = Chunks(extent, division.length, division.count)
    states = tuple(map(chunks.cut_state, passed.states))
    sources, g_outputs = ([t if t is None else chunks.cut(t) for t in tensors] for tensors in (sources, g_outputs))
    cut = Passed((), (), states, {name: chunks.cut(tensor) for name, tensor in passed.private.items()})
    inner, reduction = chunks.inner, sweep.reduction()
    pairs = reduced(sweep, reduction, cut, sources, params, g_outputs, inner)
    g_final = final(reduction.structure, sweep.recurrence.carries, extent, g_finals)
    entering = boundaries(division, chunks, pairs, g_final, reduction.structure)
    g_chunks = entering.to(sweep.dtype).split(list(sweep.recurrence.carries), 1)
    found = sweep.backward(cut, sources, params, g_outputs, g_chunks, inner, needs)
    first = extent.rows * (chunks.count - 1) if extent.reverse else 0
    carries = [chunks.unsorted(g.unsqueeze(0))[0, first : first + extent.rows] for g in found.carries]
    return Gradients([g if g is None else chunks.joined(g) for g in found.sources], carries, found.params)


def reduced(
    sweep: Sweep,
    reduction: Reduction,
    passed: Passed,
    sources: Given,
    params: Sequence[Tensor],
    g_outputs: Given,
    extent: Extent,
) -> Pair:
    """Each row's chunk as a pair, [C * B, count, ...]."""
    given = {f"carry{i}": state for i, state in enumerate(passed.states)} | passed.private
    given |= {f"g_output{k}": sweep.zeros(extent, k) if g is None else g for k, g in enumerate(g_outputs)}
    given = {name: tensor.to(REAL) for name, tensor in given.items()}
    running = reduction.start(extent.rows, sweep.recurrence.carries)
    sources = [t if t is None else t.to(REAL) for t in sources]
    tensors = sweep.named(reduction.kernel, given | running, sources, [p.to(REAL) for p in params], extent)
    reduction.run(
        list(tensors.values()),
        steps=extent.steps,
        rows=extent.rows,
        active=extent.active,
        reverse=extent.reverse,
        columns=reduction.columns,
    )
    return reduction.pair(running, sweep.recurrence.carries)


def boundaries(division: Division, chunks: Chunks, pairs: Pair, g_final: Rows, structure: Structure) -> Tensor:
    """The cotangent of all carries side by side that enters each chunk, [C * B, N]."""
    back = None if chunks.order is None else chunks.order.argsort()

    def in_scan_order(rows: Tensor) -> Tensor:
        """[C * B, ...] -> [C, B, ...], the last chunk in the recurrence's direction first."""
        by_chunk = (rows if back is None else rows[back]).unflatten(0, (chunks.count, chunks.extent.rows))
        return by_chunk if chunks.extent.reverse else by_chunk.flip(0)

    entering = exclusive(division.scan, pairs.map(in_scan_order), g_final).plain()
    if not chunks.extent.reverse:
        entering = entering.flip(0)
    g = entering.new_empty(chunks.count * chunks.extent.rows, structure.order.numel())
    g[:, structure.order] = entering.squeeze(-1).flatten(0, 1)
    return g if chunks.order is None else g[chunks.order]


def final(structure: Structure, widths: Sequence[int], extent: Extent, g_finals: Given) -> Rows:
    """The cotangent after the last step, [B, count, m, 1]."""
    parts = [
        torch.zeros(extent.rows, width, dtype=REAL) if g is None else g.to(REAL)
        for g, width in zip(g_finals, widths, strict=True)
    ]
    return Rows.of(torch.cat(parts, 1)[:, structure.order].unsqueeze(-1))
