"""The steps and rows of one call, and where a state's rows before and after its steps stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
CPU = torch.device("cpu")
Given = Sequence[Any]  # of tensors, None where there is none: who reads one knows that it is there


@dataclass(frozen=True)
class Extent:
    """Packed sequences: row b has `lengths[b]` steps, longest first, and `active[t]` rows take part in step t; their
    tensors are padded to `[T, B, n]`. A state is `[T+1, B, n]`, or `[B, n]` where only its last value is kept."""

    steps: int
    rows: int
    reverse: bool = False
    active: Tensor | None = None  # int64 [T]
    lengths: Tensor | None = None  # int64 [B]
    device: torch.device = CPU

    def before(self, state: Tensor) -> Tensor:
        """[T+1, B, n] -> [T, B, n], the rows that the steps start from."""
        return state[self.reverse : self.reverse + self.steps]

    def after(self, state: Tensor) -> Tensor:
        return state[1 - self.reverse : 1 - self.reverse + self.steps]

    def start(self, state: Tensor, value: Tensor | None) -> None:
        """Write the initial carry, `[B, n]` or None for zeros, where each row's first step reads it."""
        if state.dim() == 3 and self.reverse and self.lengths is not None:
            state[self.lengths, torch.arange(self.rows)] = state.new_zeros(()) if value is None else value
            return
        first = state if state.dim() == 2 else state[self.steps if self.reverse else 0]
        first.zero_() if value is None else first.copy_(value)

    def end(self, state: Tensor) -> Tensor:
        """The carry after each row's last step, in storage of its own."""
        if state.dim() == 2:
            return state
        if self.lengths is not None and not self.reverse:
            return state[self.lengths, torch.arange(self.rows)]
        return state[0 if self.reverse else self.steps].clone()


def flat(rows: Tensor) -> Tensor:
    """[T, B, n] -> [T * B, n]"""
    return rows.reshape(-1, rows.shape[-1])


def rows_contiguous(tensor: Tensor) -> Tensor:
    """Kernels take any strides but of the last dimension."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
