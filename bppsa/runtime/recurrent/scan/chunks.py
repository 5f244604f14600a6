"""Steps cut into chunks that run side by side, as rows of a shorter call: T steps of B rows become L steps of C * B."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from bppsa.runtime.recurrent.scan.extent import Extent


@dataclass(frozen=True)
class Chunks:
    """extent: the whole call's; length L: steps a chunk; count C. Row c * B + b of a chunked tensor is row b of chunk
    c, steps c * L to c * L + L, before `order` sorts rows by their lengths, longest first."""

    extent: Extent
    length: int
    count: int

    @cached_property
    def lengths(self) -> Tensor:
        """Steps of each row, int64 [C * B]; the last chunk is shorter, and so are those of a packed sequence's end."""
        whole = self.extent.lengths
        ends = torch.full((self.extent.rows,), self.extent.steps) if whole is None else whole
        starts = torch.arange(self.count).unsqueeze(1) * self.length
        return (ends - starts).clamp(0, self.length).flatten()

    @cached_property
    def order(self) -> Tensor | None:
        """None: rows stay as they are."""
        return None if self.extent.lengths is None else self.lengths.argsort(descending=True, stable=True)

    @cached_property
    def back(self) -> Tensor | None:
        """The inverse of `order`."""
        return None if self.order is None else self.order.argsort()

    @cached_property
    def inner(self) -> Extent:
        extent = replace(self.extent, steps=self.length, rows=self.count * self.extent.rows, active=None, lengths=None)
        lengths = self.lengths
        if bool((lengths == self.length).all()):
            return extent
        steps = torch.arange(self.length)
        return replace(
            extent,
            active=(lengths > steps.unsqueeze(1)).sum(1),
            lengths=lengths if self.order is None else lengths[self.order],
        )

    def cut(self, rows: Tensor) -> Tensor:
        """[T, B, n] -> [L, C * B, n]"""
        padded = functional.pad(rows, (0, 0, 0, 0, 0, self.count * self.length - rows.shape[0]))
        return self.sorted(padded.unflatten(0, (self.count, self.length)).transpose(0, 1).flatten(1, 2), 1)

    def cut_state(self, state: Tensor) -> Tensor:
        """[T+1, B, n] -> [L+1, C * B, n]: the state between two chunks belongs to both."""
        padded = functional.pad(state, (0, 0, 0, 0, 0, self.count * self.length + 1 - state.shape[0]))
        return self.sorted(padded.unfold(0, self.length + 1, self.length).permute(3, 0, 1, 2).flatten(1, 2), 1)

    def joined(self, rows: Tensor) -> Tensor:
        """[L, C * B, n] -> [T, B, n]"""
        chunks = self.unsorted(rows, 1).unflatten(1, (self.count, self.extent.rows))
        return chunks.transpose(0, 1).flatten(0, 1)[: self.extent.steps]

    def sorted(self, rows: Tensor, dim: int) -> Tensor:
        return rows.contiguous() if self.order is None else rows.index_select(dim, self.order.to(rows.device))

    def unsorted(self, rows: Tensor, dim: int) -> Tensor:
        return rows if self.back is None else rows.index_select(dim, self.back.to(rows.device))
