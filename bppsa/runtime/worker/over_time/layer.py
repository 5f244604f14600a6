"""One recurrent layer on one chunk of time: its forward, its summary and its backward, and how summaries combine.

A summary is the pair (J^T, b) of all steps of the chunk (BPPSA section 3.1). Behind the last chunk nothing comes but
what the loss gives, so of that chunk J^T is not needed: its summary is the cotangent before it, a vector, and so is all
that is combined with it. Pairs are formed of the chunks between the first and the last only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch import Tensor

from bppsa.runtime.recurrent.backward import Asked, by_block, by_carry, pair_of
from bppsa.runtime.recurrent.scan.extent import Extent, Given
from bppsa.runtime.recurrent.scan.pairs import Pair, ScaledRows, apply, compose
from bppsa.runtime.recurrent.sweep import Gradients, Needs, Passed, Sweep, Swept

Packed = tuple[Tensor | None, ...]  # a pair, as tensors
Summary = Tensor | Packed  # a vector is [B, N]: the cotangents of all carries side by side


@dataclass(frozen=True)
class ChunkForward:
    """A chunk's forward, and what its backward needs of it."""

    sweep: Sweep
    passed: Passed
    x: Tensor  # [T, B, I]
    weights: Sequence[Tensor]
    extent: Extent

    def pair(self, g_y: Tensor | None) -> Packed:
        """g_y: [T, B, n], what the loss and the layers above give for this chunk, None for zeros."""
        nothing = Needs([False], [False] * len(self.weights))
        asked = Asked(self.passed, [self.x], self.weights, [g_y], (), self.extent, nothing)
        return packed(pair_of(self.sweep, asked))

    def swept(self, entering: Tensor | None, g_y: Tensor | None, g_finals: Given) -> Swept:
        """entering: [B, N], the cotangent that comes from the chunks after it; g_finals: [B, n] each, what the loss
        gives in its place where there are none."""
        if entering is not None:
            g_finals = entering.split(list(self.sweep.recurrence.carries), 1)
        return self.sweep.swept(self.passed, [self.x], self.weights, [g_y], g_finals, self.extent)

    def gradients(self, swept: Swept, needs: Needs) -> Gradients:
        return self.sweep.completed(swept, [self.x], self.weights, self.extent, needs)


def run(sweep: Sweep, x: Tensor, carries: Given, weights: Sequence[Tensor], *, save: bool) -> ChunkForward:
    """x: [T, B, I]; carries: [B, n] each, None for zeros."""
    extent = Extent(x.shape[0], x.shape[1], device=x.device)
    return ChunkForward(sweep, sweep.forward([x], carries, weights, extent, save=save), x, weights, extent)


def combined(summaries: Sequence[Summary], sweep: Sweep) -> Summary:
    """The summary of chunks that follow each other. summaries: theirs, the last chunk's first."""

    def combine(after: Summary, before: Summary) -> Summary:
        assert isinstance(before, tuple)
        pair = unpacked(before)
        if isinstance(after, tuple):
            return packed(compose(pair, unpacked(after)))
        structure = sweep.reduction().structure
        return by_carry(apply(pair, by_block(after, structure)).plain(), structure).to(after.dtype)

    return reduce(combine, summaries)


def packed(pair: Pair) -> Packed:
    return (pair.matrix.values, pair.matrix.exponents, pair.vector.values, pair.vector.exponents, pair.live)


def unpacked(tensors: Any) -> Pair:
    matrix, matrix_exponents, vector, vector_exponents, live = tensors
    return Pair(ScaledRows(matrix, matrix_exponents), ScaledRows(vector, vector_exponents), live)
