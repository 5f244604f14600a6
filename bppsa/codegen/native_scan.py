"""Call the kernels of `triton_scan.py` on tensors: what enters each chunk, from all reductions, in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.triton_columns import padded

WIDEST = 128  # numbers of a dense M that a program holds
NUMBERS = 128  # of a program, and its threads, where M is diagonal


def boundaries(running: Tensor, g: Tensor, *, reverse: bool) -> Tensor:
    """[C, B, N], chunks in the order of time. running: [C, B, m + 2, pitch], of `codegen/reduction.py`, its M dense or
    diagonal; g: [B, N], what enters the chunk that the backward comes to first: the last, or where the recurrence runs
    in `reverse`, the first."""
    from bppsa.codegen import triton_scan

    chunks, rows, _, pitch = running.shape
    width = g.shape[1]
    entering = torch.empty(chunks, rows, width, dtype=g.dtype, device=g.device)
    given = (running, g.contiguous(), entering, chunks, rows, 1 if reverse else -1, pitch, width)
    kernel: Any
    if running.shape[2] == width + 2 and width > 1:
        P = max(16, padded(width))
        kernel = triton_scan.boundaries_of_columns[(rows,)]
        kernel(*given, P, num_warps=max(1, P // 16))
    else:
        kernel = triton_scan.boundaries_of_numbers[(-(-rows * width // NUMBERS),)]
        kernel(*given, NUMBERS)
    return entering
