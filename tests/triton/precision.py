"""What a GPU's tensor cores make of a float32 product, emulated: Triton's interpreter multiplies in full precision
whatever `input_precision` says.

A split writes each factor as a sum of short numbers, multiplies those exactly and adds up in float32, leaving out the
products that are too small to matter (Ootomo and Yokota 2022, section 3; Henry et al. 2019 for bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FRACTION_BITS = 23  # of float32


@dataclass(frozen=True)
class TermSplit:
    """Terms of `bits` bits after the point; the products of terms i and j are kept where i + j <= `order`."""

    bits: int
    terms: int
    order: int


SPLITS = {
    "tf32": TermSplit(10, 1, 0),
    "tf32x3": TermSplit(10, 2, 1),
    "bf16": TermSplit(7, 1, 0),
    "bf16x6": TermSplit(7, 3, 2),
}


def product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """a [..., N, K] times b [..., K, M], float32. The smallest products are added first."""
    split = SPLITS[precision]
    left, right = terms(a, split), terms(b, split)
    kept = [(i, j) for i in range(split.terms) for j in range(split.terms) if i + j <= split.order]
    total = torch.zeros(())
    for i, j in sorted(kept, key=sum, reverse=True):
        total = total + left[i] @ right[j]
    return total


def terms(x: Tensor, split: TermSplit) -> list[Tensor]:
    found = []
    for _ in range(split.terms):
        found.append(rounded(x, split.bits))
        x = x - found[-1]
    return found


def rounded(x: Tensor, bits: int) -> Tensor:
    """float32 -> float32 with `bits` bits after the point: to nearest, ties away from zero."""
    dropped = FRACTION_BITS - bits
    shifted = x.contiguous().view(torch.int32) + (1 << (dropped - 1))
    return torch.where(x.isfinite(), (shifted >> dropped << dropped).view(torch.float32), x)
