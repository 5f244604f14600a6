"""A recurrence's backward by a strategy: one sweep over all steps, or a scan over chunks of them in three phases.

    reduce   each chunk to one pair (J^T, b)                                       runtime.reduce
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
from bppsa.runtime.pairs import Rows
from bppsa.runtime.reduce import REAL, Steps, reduce
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
    inner = chunks.inner
    steps = Steps(
        sweep.recurrence, sweep.program.transposed, sweep.structure(), sources, states, params, g_outputs, inner
    )
    entering = boundaries(steps, division, chunks, g_finals)
    private = {name: chunks.cut(tensor) for name, tensor in passed.private.items()}
    found = sweep.backward(Passed((), (), states, private), sources, params, g_outputs, entering, inner, needs)
    first = extent.rows * (chunks.count - 1) if extent.reverse else 0
    carries = [chunks.unsorted(g.unsqueeze(0))[0, first : first + extent.rows] for g in found.carries]
    return Gradients([g if g is None else chunks.joined(g) for g in found.sources], carries, found.params)


def boundaries(steps: Steps, division: Division, chunks: Chunks, g_finals: Given) -> list[Tensor]:
    """The cotangent of each carry that enters each chunk, [C * B, n]."""
    structure, extent = steps.structure, chunks.extent
    back = None if chunks.order is None else chunks.order.argsort()

    def in_scan_order(rows: Tensor) -> Tensor:
        """[C * B, ...] -> [C, B, ...], the last chunk in the recurrence's direction first."""
        by_chunk = (rows if back is None else rows[back]).unflatten(0, (chunks.count, extent.rows))
        return by_chunk if extent.reverse else by_chunk.flip(0)

    pairs = reduce(steps).map(in_scan_order)
    entering = exclusive(division.scan, pairs, final(structure, steps.recurrence.carries, extent, g_finals)).plain()
    if not extent.reverse:
        entering = entering.flip(0)
    g = entering.new_empty(chunks.count * extent.rows, structure.order.numel())
    g[:, structure.order] = entering.squeeze(-1).flatten(0, 1)
    g = g if chunks.order is None else g[chunks.order]
    return list(g.to(steps.states[0].dtype).split(steps.recurrence.carries, 1))


def final(structure: Structure, widths: Sequence[int], extent: Extent, g_finals: Given) -> Rows:
    """The cotangent after the last step, [B, count, m, 1]."""
    parts = [
        torch.zeros(extent.rows, width, dtype=REAL) if g is None else g.to(REAL)
        for g, width in zip(g_finals, widths, strict=True)
    ]
    return Rows.of(torch.cat(parts, 1)[:, structure.order].unsqueeze(-1))
