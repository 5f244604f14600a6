"""Call the kernels of `triton_scan.py` on tensors: pairs of all chunks, then their boundary cotangents.

Blocks of up to 32 columns fit a program's registers; `reduce` is right for up to 64, but slow, because it spills there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.native_triton import PRECISION
from bppsa.codegen.triton_columns import LEAST, padded

WARPS = {16: 1, 32: 4, 64: 4}  # for blocks padded to so many columns
DIAGONAL = 128  # columns of a program, and its threads


@dataclass(frozen=True)
class Pairs:
    """Chunk c is g -> M g + v with M = products 2^exponents, row by row. Diagonal: products [C, B, n]; else
    [C, B, D, m, m] for n = D m. exponents: int32 [C, B, n]; sums: v [C, B, n]."""

    products: Tensor
    exponents: Tensor
    sums: Tensor


def reduce(
    jacobians: Tensor,
    offsets: Tensor,
    chunk: int,
    *,
    ascending: bool,
    lengths: Tensor | None = None,
    precision: str = PRECISION,
) -> Pairs:
    """jacobians: J^T, [T, B, D, m, m] with m <= 64 or, diagonal, [T, B, n], contiguous within a row of a step; offsets:
    b, [T, B, n]. The sweep takes g <- J^T g + b from step to step, `ascending` in time or not. lengths: int64 [B]."""
    from bppsa.codegen import triton_scan

    steps, rows, width = offsets.shape
    chunks = -(-steps // chunk)
    pairs = Pairs(
        jacobians.new_empty(chunks, *jacobians.shape[1:]),
        torch.empty(chunks, rows, width, dtype=torch.int32, device=offsets.device),
        offsets.new_empty(chunks, rows, width),
    )
    given = (jacobians, *jacobians.stride()[:2], offsets, *offsets.stride()[:2])
    made = (pairs.products, pairs.exponents, pairs.sums)
    scalars = (lengths, steps, rows, chunk, 1 if ascending else -1)
    kernel: Any
    if jacobians.dim() == 3:
        kernel = triton_scan.reduce_diagonal[(chunks * rows * -(-width // DIAGONAL),)]
        kernel(*given, *made, *scalars, width, DIAGONAL)
    else:
        D, m = jacobians.shape[2:4]
        P = max(LEAST, padded(m))
        exact = "ieee" if offsets.dtype is torch.float64 else precision
        kernel = triton_scan.reduce_blocks[(chunks * rows * D,)]
        kernel(*given, *made, *scalars, D, m, P, exact, num_warps=WARPS[P])
    return pairs


def boundaries(pairs: Pairs, g: Tensor, *, ascending: bool) -> Tensor:
    """What stands before each chunk's first step, [C, B, n]. g: [B, n], contiguous, what stands before the first
    chunk's; in place it becomes what the last chunk leaves."""
    from bppsa.codegen import triton_scan

    chunks, rows, width = pairs.sums.shape
    found = torch.empty_like(pairs.sums)
    given = (pairs.products, pairs.exponents, pairs.sums, g, found, chunks, rows, 1 if ascending else -1)
    kernel: Any
    if pairs.products.dim() == 3:
        kernel = triton_scan.boundaries_of_diagonal[(-(-rows * width // DIAGONAL),)]
        kernel(*given, width, DIAGONAL)
    else:
        D, m = pairs.products.shape[2:4]
        P = max(LEAST, padded(m))
        kernel = triton_scan.boundaries_of_blocks[(rows * D,)]
        kernel(*given, D, m, P, num_warps=WARPS[P])
    return found
