"""Call the kernels of `scan_kernels.py` on tensors: what enters each chunk, from all reductions, in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.gpu.columns import padded

WIDEST = 128  # numbers of a dense M that a program holds
NUMBERS = 128  # of a program, and its threads, where M is diagonal


def scan_of(width: int, diagonal: bool) -> tuple[Any, int, int]:
    """The kernel for carries so wide, its block of numbers, and its warps."""
    from bppsa.codegen.gpu import scan_kernels

    if diagonal:
        return scan_kernels.boundaries_of_numbers, NUMBERS, NUMBERS // 32
    block = max(16, padded(width))
    return scan_kernels.boundaries_of_columns, block, max(1, block // 16)


def boundaries(running: Tensor, g: Tensor, *, reverse: bool) -> Tensor:
    """[C, B, N], chunks in the order of time. running: [C, B, m + 2, pitch], of `codegen/reduction.py`, its M dense or
    diagonal; g: [B, N], what enters the chunk that the backward comes to first: the last, or where the recurrence runs
    in `reverse`, the first."""
    chunks, rows, columns, pitch = running.shape
    width = g.shape[1]
    entering = torch.empty(chunks, rows, width, dtype=g.dtype, device=g.device)
    diagonal = columns == 3
    kernel, block, warps = scan_of(width, diagonal)
    programs = -(-rows * width // block) if diagonal else rows
    given = (running, g.contiguous(), entering, chunks, rows, 1 if reverse else -1, pitch)
    kernel[(programs,)](*given, width, block, num_warps=warps)
    return entering
