"""Views as parts of a whole: what a change of the view in place makes of the whole.

The whole is then one op more, from new numbers at the places of the view and from its own elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.recording.pieces import diagonal_scatter, slice_scatter

aten = torch.ops.aten


@dataclass(frozen=True)
class Part:
    """A view as a part of its whole. replaced: gives the whole with other numbers in this part, as new memory."""

    whole: Tensor
    replaced: Callable[[Tensor], Tensor]


def between(whole: Tensor, dim: int, start: int, end: int, new: Tensor) -> Tensor:
    """The whole with `new` from `start` to `end` along the dimension."""
    before, behind = whole.narrow(dim, 0, start), whole.narrow(dim, end, whole.shape[dim] - end)
    return torch.cat([piece for piece in (before, new, behind) if piece.shape[dim]], dim)


def selected(whole: Tensor, dim: int, index: int) -> Part:
    dim, start = dim % whole.dim(), index % whole.shape[dim]
    return Part(whole, lambda new: between(whole, dim, start, start + 1, new.unsqueeze(dim)))


def sliced(whole: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Part | None:
    dim %= whole.dim()
    first, last, _ = slice(start, end, step).indices(whole.shape[dim])
    if first >= last:
        return None
    if step > 1:
        return Part(whole, lambda new: slice_scatter(whole, new, dim, first, last, step))
    return Part(whole, partial(between, whole, dim, first, last))


def diagonal(whole: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Part:
    return Part(whole, lambda new: diagonal_scatter(whole, new, offset, dim1, dim2))


def reshaped(whole: Tensor, *how: Any) -> Part:
    return Part(whole, lambda new: new.reshape(whole.shape))


def transposed(whole: Tensor, first: int = 0, second: int = 1) -> Part:
    return Part(whole, lambda new: new.transpose(first, second) if whole.dim() > 1 else new)


def permuted(whole: Tensor, dims: list[int]) -> Part:
    order = [dim % whole.dim() for dim in dims]
    return Part(whole, lambda new: new.permute([order.index(dim) for dim in range(whole.dim())]))


# What tells of a view which part of its whole it is, by the op that makes it; None for one that shows nothing.
PARTS: dict[Any, Callable[..., Part | None]] = {
    aten.select.int: selected,
    aten.slice.Tensor: sliced,
    aten.diagonal.default: diagonal,
    **dict.fromkeys((aten.view.default, aten.unsqueeze.default), reshaped),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), reshaped),
    **dict.fromkeys((aten.t.default, aten.transpose.int), transposed),
    aten.permute.default: permuted,
}
