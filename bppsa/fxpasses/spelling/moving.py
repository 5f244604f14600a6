"""Columns of rows [B, ...] repeated, turned, put beside one another and looked at through windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.spelling.choosing import few, own_axis

aten = torch.ops.aten


def repeat(x: Tensor, times: Sequence[int]) -> Tensor:
    if x.dim() != len(times) or times[0] != 1 or 0 in times:
        raise Unsupported("repeats along the batch dimension")
    for axis, count in enumerate(times):
        x = x if count == 1 else torch.cat([x] * count, axis)
    return x


def cross(a: Tensor, b: Tensor, *, dim: int = -1) -> Tensor:
    """a x b, of vectors of three columns"""
    axis = own_axis(a, dim)
    return a.roll(-1, axis) * b.roll(-2, axis) - a.roll(-2, axis) * b.roll(-1, axis)


def rot90(x: Tensor, turns: int, dims: Sequence[int]) -> Tensor:
    first, second = (own_axis(x, d) for d in dims)
    turned = x.flip(((), (second,), (first, second), (first,))[turns % 4])
    return turned.transpose(first, second) if turns % 2 else turned


def pad(beside: Callable[[int, int], int]) -> Callable[..., Tensor]:
    """beside: the column of x that stands at a place outside of its n columns."""

    def padded(x: Tensor, counts: Sequence[int]) -> Tensor:
        for i, (before, behind) in enumerate(zip(counts[::2], counts[1::2], strict=True)):
            axis = own_axis(x, -1 - i)
            n = x.shape[axis]
            columns = [at if 0 <= at < n else beside(at, n) for at in range(-before, n + behind)]
            few(len(columns) - n)
            x = torch.cat([x.narrow(axis, first, count) for first, count in consecutive(columns)], axis)
        return x

    return padded


def consecutive(columns: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and length of each run of columns that follow one another."""
    first = 0
    for i in range(1, len(columns) + 1):
        if i == len(columns) or columns[i] != columns[i - 1] + 1:
            yield columns[first], i - first
            first = i


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` columns, in a dimension behind the others."""
    axis = own_axis(x, dim)
    few(size)
    count = (x.shape[axis] - size) // step + 1
    return torch.stack([aten.slice.Tensor(x, axis, i, i + (count - 1) * step + 1, step) for i in range(size)], -1)


def mirrored(at: int, n: int) -> int:
    return -at if at < 0 else 2 * (n - 1) - at


def nearest(at: int, n: int) -> int:
    return max(0, min(at, n - 1))


def without_empty(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Beside others, what has no columns is nothing."""
    some = [tensor for tensor in tensors if tensor.numel()]
    return torch.cat(some, dim) if some and len(some) < len(tensors) else NotImplemented
