"""Values of a convolution's J^T without an index for each: rows of one kind hold the same weights.

Along a dimension of the grid, places that lie under the same taps of the kernel are of one kind; away from the borders
they follow each other at the distance of the stride. So the values are a few small gathers from the weight (the
templates), each copied to every row of a run: for a convolution 3x3 with padding, nine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.sparsity.patterns.pattern import Pattern

TemplateLine = tuple[Pattern, Tensor]  # of one dimension, the tap of each entry beside it
MOST = 64  # runs; where there are more, an index for each value is the shorter way


@dataclass(frozen=True)
class TapRun:
    """`count` places of one dimension that lie under the same taps."""

    taps: tuple[int, ...]
    start: int  # entries of the line before the first place
    step: int  # entries from one place to the next
    count: int


@dataclass(frozen=True, eq=False)
class Template:
    """Where the rows of one kind stand among the entries of a channel pair: strided, one dimension each of the grid."""

    taps: Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int


def runs(line: TemplateLine) -> list[TapRun]:
    """The runs of one dimension; places under no tap have no entries."""
    pattern, tap = line
    ends, taps = pattern.indptr.tolist(), tap.tolist()
    open_runs: dict[tuple[int, ...], TapRun] = {}
    found = []
    for start, end in itertools.pairwise(ends):
        kind = tuple(taps[start:end])
        run = open_runs.get(kind)
        if run is not None and (run.count == 1 or start == run.start + run.count * run.step):
            open_runs[kind] = TapRun(kind, run.start, start - run.start if run.count == 1 else run.step, run.count + 1)
            continue
        if run is not None:
            found.append(run)
        open_runs[kind] = TapRun(kind, start, 0, 1)
    return [run for run in (*found, *open_runs.values()) if run.taps]


def templates(lines: Sequence[TemplateLine], kernel: Sequence[int]) -> tuple[Template, ...]:
    """The templates of the whole grid; none where there are too many."""
    by_line = [runs(line) for line in lines]
    if math.prod(map(len, by_line)) > MOST:
        return ()
    totals = [pattern.nnz for pattern, _ in lines]
    return tuple(combined(each, totals, kernel) for each in itertools.product(*by_line))


def combined(each: Sequence[TapRun], totals: Sequence[int], kernel: Sequence[int]) -> Template:
    start, strides, taps = 0, [], torch.zeros(1, dtype=torch.int64)
    for d, run in enumerate(each):
        scale = math.prod(len(before.taps) for before in each[:d]) * math.prod(totals[d + 1 :])
        start += scale * run.start
        strides.append(scale * run.step)
        taps = (taps[:, None] * kernel[d] + torch.tensor(run.taps)).flatten()
    return Template(taps, tuple(run.count for run in each), tuple(strides), start)


def fill(found: Sequence[Template], weight: Tensor, grid_entries: int) -> Tensor:
    """The values [E]. weight: [Ci, Co of a group, taps]; grid_entries: of one pair of channels."""
    channels, outputs, _ = weight.shape
    values = weight.new_empty(channels * outputs * grid_entries)
    for template in found:
        filters = weight.index_select(2, template.taps.to(weight.device)).flatten(1)
        strides = [outputs * grid_entries, *(outputs * stride for stride in template.stride), 1]
        size = [channels, *template.size, filters.shape[1]]
        at = filters.view(channels, *(1 for _ in template.size), filters.shape[1])
        values.as_strided(size, strides, outputs * template.start).copy_(at)
    return values
