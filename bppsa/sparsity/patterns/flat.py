"""Samples as the vectors that J^T is about."""

from __future__ import annotations

from torch import Tensor


def flat(x: Tensor, dim: int = 1) -> Tensor:
    """x [B, *n] as [B, N], also where a sample is a single number, [B]; dim: where the sample's dimensions begin."""
    return x.flatten(dim) if x.dim() > dim else x.unsqueeze(dim)


def as_held(values: Tensor) -> Tensor:
    """Values [B, N] of J^T as an operator gives them: [N] where the batch shares them, as a batch of one does."""
    return values[0] if len(values) == 1 else values
