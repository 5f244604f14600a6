"""Carries whose batch is their second dimension: [1, B, H], as nn.LSTM keeps its states, and [4, B, H], several in one.

A plan is made for rows in front, and the cell is still given what its user gave: which dimension is taken for the batch
decides about fusing alone, and changes no number.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Second = tuple[bool, ...]  # of each leaf of the carry; empty where none is


def batch_second(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> Second:
    """Whether a leaf's second dimension is as large as the batch of xs, and its first is not."""
    rows = {leaf.shape[1] for leaf in xs if leaf.dim() > 1}
    if len(rows) != 1:
        return ()
    (batch,) = rows
    second = tuple(leaf.dim() > 1 and leaf.shape[0] != batch == leaf.shape[1] for leaf in carry)
    return second if any(second) else ()


def swapped(leaves: Sequence[Tensor], second: Second) -> list[Tensor]:
    """The leaves with the batch in front, or from there where their user has it."""
    if not second:
        return list(leaves)
    return [leaf.transpose(0, 1) if at else leaf for leaf, at in zip(leaves, second, strict=True)]
