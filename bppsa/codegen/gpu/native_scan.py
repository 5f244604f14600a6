"""Call the kernels of `scan_kernels.py` on tensors: what enters each chunk, from all chunks' reductions; in a backward
cotangents, in a Newton iteration of the forward the changes of the carries."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.gpu.native import PRECISION, launch
from bppsa.codegen.gpu.triton.columns import padded
from bppsa.plan.levels import ScanPlan

WIDEST, WIDEST_LEVEL = 128, 63  # numbers of a dense M that a program holds, and of two
NUMBERS = 128  # of a program, and its threads, where M is diagonal


def scan_of(width: int, diagonal: bool) -> tuple[Any, int, int]:
    """The kernel for carries so wide, its block of numbers, and its warps."""
    from bppsa.codegen.gpu.triton import scan_kernels

    if diagonal:
        return scan_kernels.boundaries_of_numbers, NUMBERS, NUMBERS // 32
    block = max(16, padded(width))
    return scan_kernels.boundaries_of_columns, block, max(1, block // 16)


def level_block(width: int) -> tuple[int, int]:
    """Rows and columns of a tile that holds M and v, and its warps."""
    block = max(16, padded(width + 1))
    return block, max(1, block // 8)


def boundaries(plan: ScanPlan, running: Tensor, g: Tensor, *, reverse: bool) -> Tensor | None:
    """[C, B, N], chunks in the order of time; None where no kernel holds an M so wide.

    running: [C, B, m + 2, pitch], of `assembling/reduction.py`; a tree's levels write over it. g: [B, N], what enters
    the chunk that the backward comes to first: the last, or where the recurrence runs in `reverse`, the first.
    """
    width, columns = g.shape[1], running.shape[2]
    if columns == 3 and not plan.down:
        return linearly(running, g, reverse=reverse)
    if columns != width + 2 or width > (WIDEST if not plan.down else WIDEST_LEVEL):
        return None
    return by_levels(plan, running, g, reverse=reverse) if plan.down else linearly(running, g, reverse=reverse)


def corrections(running: Tensor, residual: Tensor) -> Tensor | None:
    """The changes d [C, B, N] with d[c + 1] = J_c d[c] + residual[c], d[0] = 0 (DEER, Lim et al. 2024, section 3); None
    where no kernel holds a J_c so wide. running: as `boundaries` takes it, of J_c^T, chunks in the recurrence's order;
    it is written over. residual: [C, B, N]."""
    _, rows, columns, _ = running.shape
    width = residual.shape[2]
    if columns != 3 and (columns != width + 2 or width > WIDEST):
        return None
    running[:, :, -2, :width] = residual  # v: no cotangent entered on the way
    return linearly(running, residual.new_zeros(rows, width), reverse=True, transposed=True)


def linearly(running: Tensor, g: Tensor, *, reverse: bool, transposed: bool = False) -> Tensor:
    """Scans in one launch. reverse: from the first chunk on; transposed: by the transposes of their M."""
    chunks, rows, columns, pitch = running.shape
    width = g.shape[1]
    entering = torch.empty(chunks, rows, width, dtype=g.dtype, device=g.device)
    diagonal = columns == 3
    kernel, block, warps = scan_of(width, diagonal)
    programs = -(-rows * width // block) if diagonal else rows
    given = (running, g.contiguous(), entering, chunks, rows, 1 if reverse else -1, pitch)
    launch("boundaries", kernel, programs, [*given, width, block, transposed], {"num_warps": warps})
    return entering


def by_levels(plan: ScanPlan, running: Tensor, g: Tensor, *, reverse: bool) -> Tensor:
    """Scans in one launch a level."""
    from bppsa.codegen.gpu.triton import scan_kernels

    chunks, rows, _, pitch = running.shape
    width = g.shape[1]
    block, warps = level_block(width)
    vectors = torch.empty(chunks + 1, rows, width, dtype=g.dtype, device=g.device)
    vectors[chunks] = g  # a[0]
    given, sizes = (running, vectors), (rows, pitch, width, block)
    up, places, down = tables(plan, reverse, g.device)
    exact = "ieee" if g.dtype is torch.float64 else PRECISION
    kernels: Any = scan_kernels
    how = {"num_warps": warps}
    for level in up:
        launch("up_level", kernels.up_level, rows * level.shape[1], [*given, *level, *sizes, exact], how)
    launch("middle", kernels.middle, rows, [*given, places, len(places), *sizes], how)
    for level in down:
        launch("down_level", kernels.down_level, rows * level.shape[1], [*given, *level, *sizes], how)
    return vectors[:chunks]


@functools.lru_cache(maxsize=64)
def tables(plan: ScanPlan, reverse: bool, device: torch.device) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """The plan's levels, int32 [3, pairs] each: where left and right stand, and whether left is a vector by then; and
    its middle. Place i of the plan stands with the chunk that is i-th from where the backward begins; place 0 after
    all chunks."""

    def at(place: int) -> int:
        return plan.n - place if not reverse or not place else place - 1

    vector = [True] + [False] * plan.n
    up, down = [], []
    for pairs in plan.up:
        up.append([[at(left), at(right), vector[left]] for left, right in pairs])
        for left, right in pairs:
            vector[right] = vector[left]
    for pairs in plan.down:
        down.append([[at(left), at(right), vector[left]] for left, right in pairs])

    def tensor(rows: Any) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=device)

    ups, downs = ([tensor(level).t().contiguous() for level in levels] for levels in (up, down))
    return ups, tensor([at(place) for place in plan.middle]), downs
