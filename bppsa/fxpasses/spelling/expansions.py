"""What ops of rows [B, ...] are made of: sums, maxima, slices and pointwise ops, so many as grow little with n.

Values, ties and what a NaN gives are PyTorch's. NotImplemented leaves an op as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.one_hot import ONE_HOT, as_comparison
from bppsa.fxpasses.recording.pieces import kept, number, places
from bppsa.fxpasses.spelling.choosing import (
    along,
    aminmax,
    columns_at,
    extremum_place,
    few,
    gather,
    index,
    kth_value,
    lookup,
    median,
    own_axes,
    own_axis,
    sort,
    topk,
)
from bppsa.fxpasses.spelling.convolution import convolution, max_pool, mean_pool
from bppsa.fxpasses.spelling.writing import added, index_put, put_columns, replaced, scatter

aten = torch.ops.aten


# Running and whole products and sums ---------------------------------------------------------------------------------


def running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Each column with all before it, by doubling: log2(n) ops."""

    def run(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        axis, n = own_axis(x, dim), x.shape[dim]
        for reach in doubling(n):
            rest = combine(x.narrow(axis, 0, n - reach), x.narrow(axis, reach, n - reach))
            x = torch.cat([x.narrow(axis, 0, reach), rest], axis)
        return x

    return run


def doubling(n: int) -> Iterator[int]:
    reach = 1
    while reach < n:
        yield reach
        reach *= 2


def running_extremum(sign: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """The largest or smallest so far, and where it is: of equal ones the last; a NaN is both."""

    def run(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        axis, n = own_axis(x, dim), x.shape[dim]
        at = places(x, axis).expand(x.shape)
        for reach in doubling(n):
            before, here = x.narrow(axis, 0, n - reach), x.narrow(axis, reach, n - reach)
            later = torch.logical_or(here >= before if sign > 0 else here <= before, torch.isnan(here))
            place = torch.where(later, at.narrow(axis, reach, n - reach), at.narrow(axis, 0, n - reach))
            x = torch.cat([x.narrow(axis, 0, reach), torch.where(later, here, before)], axis)
            at = torch.cat([at.narrow(axis, 0, reach), place], axis)
        return x, number(at, x, axis)

    return run


def prod(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """By halves, so that a zero spoils no gradient of the others."""
    axis = own_axis(x, dim)
    while x.shape[axis] > 1:
        half = x.shape[axis] // 2
        pairs = x.narrow(axis, 0, half) * x.narrow(axis, half, half)
        x = torch.cat([pairs, x.narrow(axis, 2 * half, 1)], axis) if x.shape[axis] % 2 else pairs
    return kept(x, axis, keepdim)


def holds(enough: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """Whether enough of the elements along some dimensions are no zeros."""

    def told(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        axes = own_axes(x, dim)
        count = torch.ne(x, 0).sum(axes, keepdim=keepdim)
        return enough(count, math.prod(x.shape[d] for d in axes))

    return told


# Statistics ----------------------------------------------------------------------------------------------------------


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes = own_axes(x, dim)
    return x.var(axes, correction=correction, keepdim=keepdim), x.mean(axes, keepdim=keepdim)


def vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    axes = own_axes(x, dim)
    if order == 2:
        return aten.linalg_vector_norm.default(x, order, axes, keepdim)
    if order in (math.inf, -math.inf):
        return x.abs().amax(axes, keepdim=keepdim) if order > 0 else x.abs().amin(axes, keepdim=keepdim)
    if order == 1:
        return x.abs().sum(axes, keepdim=keepdim)
    if order < 0:
        raise Unsupported(Reason(f"is a norm of order {order}"))
    return norm_of_any_order(x, order, axes, keepdim)


def norm_of_any_order(x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    """With the gradient that PyTorch gives at zeros, which is zero: powers below one have none there."""
    zero = x == 0
    if order == 0:
        return torch.where(zero, 0.0, torch.ones_like(x)).sum(axes, keepdim=keepdim)
    powers = torch.where(zero, 0.0, torch.where(zero, 1.0, x.abs()).pow(order)).sum(axes, keepdim=keepdim)
    empty = powers == 0
    return torch.where(empty, 0.0, torch.where(empty, 1.0, powers).pow(1 / order))


def batch_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """With the running statistics, one of each channel."""
    out = (x - along(mean, x, 1)) * torch.rsqrt(along(variance, x, 1) + eps)
    out = out if w is None else out * along(w, x, 1)
    return out if b is None else out + along(b, x, 1), x, x


# Moving columns ------------------------------------------------------------------------------------------------------


def repeat(x: Tensor, times: Sequence[int]) -> Tensor:
    if x.dim() != len(times) or times[0] != 1 or 0 in times:
        raise Unsupported(Reason("repeats along the batch dimension"))
    for axis, count in enumerate(times):
        x = x if count == 1 else torch.cat([x] * count, axis)
    return x


def pad(beside: Callable[[int, int], int]) -> Callable[..., Tensor]:
    """beside: the column of x that stands at a place outside of its n columns."""

    def padded(x: Tensor, counts: Sequence[int]) -> Tensor:
        for i, (before, behind) in enumerate(zip(counts[::2], counts[1::2], strict=True)):
            axis = own_axis(x, -1 - i)
            n = x.shape[axis]
            columns = [at if 0 <= at < n else beside(at, n) for at in range(-before, n + behind)]
            few(len(columns) - n)
            x = torch.cat([x.narrow(axis, first, count) for first, count in stretches(columns)], axis)
        return x

    return padded


def stretches(columns: Sequence[int]) -> Iterator[tuple[int, int]]:
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


def sinc(x: Tensor) -> Tensor:
    angle = math.pi * torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 1.0, torch.sin(angle) / angle)


EXPANSIONS: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: extremum_place(1.0),
    aten.argmin.default: extremum_place(-1.0),
    aten.aminmax.default: aminmax,
    aten.topk.default: topk,
    aten.sort.default: sort,
    aten.sort.stable: lambda x, *, stable=False, dim=-1, descending=False: sort(x, dim, descending),
    aten.median.dim: median,
    aten.kthvalue.default: kth_value,
    aten.cummax.default: running_extremum(1.0),
    aten.cummin.default: running_extremum(-1.0),
    **dict.fromkeys((aten.any.dim, aten.any.dims), holds(lambda count, n: count > 0)),
    **dict.fromkeys((aten.all.dim, aten.all.dims), holds(lambda count, n: count == n)),
    aten.cumsum.default: running(torch.add),
    aten.cumprod.default: running(torch.mul),
    aten.logcumsumexp.default: running(torch.logaddexp),
    aten.prod.dim_int: prod,
    aten.var_mean.correction: var_mean,
    aten.std_mean.correction: lambda x, dim=None, *, correction=None, keepdim=False: (
        x.std(dim, correction=correction, keepdim=keepdim),
        x.mean(dim, keepdim=keepdim),
    ),
    aten.linalg_vector_norm.default: vector_norm,
    aten._native_batch_norm_legit_no_training.default: batch_norm,
    aten.index.Tensor: index,
    aten.index_select.default: columns_at,
    aten.embedding.default: lambda table, at, *options: lookup(table, at),
    aten.gather.default: gather,
    **dict.fromkeys((aten.scatter.value, aten.scatter.src), scatter(replaced)),
    aten.scatter_add.default: scatter(added),
    aten.index_add.default: put_columns(added),
    aten.index_copy.default: put_columns(replaced),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), put_columns(replaced)),
    aten.index_put.default: index_put,
    aten.repeat.default: repeat,
    **dict.fromkeys((aten.reflection_pad1d.default, aten.reflection_pad2d.default), pad(mirrored)),
    **dict.fromkeys((aten.replication_pad1d.default, aten.replication_pad2d.default), pad(nearest)),
    aten.unfold.default: unfold,
    **dict.fromkeys((aten.avg_pool1d.default, aten.avg_pool2d.default), mean_pool),
    aten.max_pool2d_with_indices.default: max_pool,
    aten.sinc.default: sinc,
    ONE_HOT: as_comparison,
    aten.convolution.default: convolution,
    aten.glu.default: lambda x, dim=-1: x.chunk(2, dim)[0] * torch.sigmoid(x.chunk(2, dim)[1]),
}
