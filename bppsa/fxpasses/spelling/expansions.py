"""What ops of rows [B, n] are made of: sums, maxima, slices and pointwise ops, so many as grow little with n.

Values, ties and what a NaN gives are PyTorch's. NotImplemented leaves an op as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.pieces import kept
from bppsa.fxpasses.spelling.choosing import (
    aminmax,
    columns_at,
    extremum_place,
    gather,
    index,
    lookup,
    own_columns,
    scatter,
    sort,
    topk,
)

aten = torch.ops.aten


# Running and whole products and sums ---------------------------------------------------------------------------------


def running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Each column with all before it, by doubling: log2(n) ops."""

    def run(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        own_columns(x, dim)
        reach = 1
        while reach < x.shape[1]:
            x = torch.cat([x[:, :reach], combine(x[:, :-reach], x[:, reach:])], 1)
            reach *= 2
        return x

    return run


def prod(x: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """By halves, so that a zero spoils no gradient of the others."""
    own_columns(x, dim)
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        rest = [x[:, 2 * half :]] if x.shape[1] % 2 else []
        x = torch.cat([x[:, :half] * x[:, half : 2 * half], *rest], 1) if rest else x[:, :half] * x[:, half:]
    return kept(x, 1, keepdim)


# Statistics ----------------------------------------------------------------------------------------------------------


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    own_columns(x, dim)
    return x.var(1, correction=correction, keepdim=keepdim), x.mean(1, keepdim=keepdim)


def vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    own_columns(x, dim)
    if order == 2:
        return aten.linalg_vector_norm.default(x, order, [1], keepdim)
    if order in (math.inf, -math.inf):
        return x.abs().amax(1, keepdim=keepdim) if order > 0 else x.abs().amin(1, keepdim=keepdim)
    if order == 1:
        return x.abs().sum(1, keepdim=keepdim)
    if order < 0:
        raise Unsupported(Reason(f"is a norm of order {order}"))
    return norm_of_any_order(x, order, keepdim)


def norm_of_any_order(x: Tensor, order: float, keepdim: bool) -> Tensor:
    """With the gradient that PyTorch gives at zeros, which is zero: powers below one have none there."""
    zero = x == 0
    if order == 0:
        return torch.where(zero, 0.0, torch.ones_like(x)).sum(1, keepdim=keepdim)
    powers = torch.where(zero, 0.0, torch.where(zero, 1.0, x.abs()).pow(order)).sum(1, keepdim=keepdim)
    empty = powers == 0
    return torch.where(empty, 0.0, torch.where(empty, 1.0, powers).pow(1 / order))


def batch_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """With the running statistics."""
    out = (x - mean) * torch.rsqrt(variance + eps)
    out = out if w is None else out * w
    return out if b is None else out + b, x, x


# Moving columns ------------------------------------------------------------------------------------------------------


def repeat(x: Tensor, times: Sequence[int]) -> Tensor:
    if x.dim() != len(times) or times[0] != 1 or x.dim() != 2:
        raise Unsupported(Reason("repeats along the batch dimension"))
    return torch.cat([x] * times[1], 1)


EXPANSIONS: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: extremum_place(1.0),
    aten.argmin.default: extremum_place(-1.0),
    aten.aminmax.default: aminmax,
    aten.topk.default: topk,
    aten.sort.default: sort,
    aten.sort.stable: lambda x, *, stable=False, dim=-1, descending=False: sort(x, dim, descending),
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
    aten.scatter.value: scatter,
    aten.scatter.src: scatter,
    aten.repeat.default: repeat,
    aten.glu.default: lambda x, dim=-1: x.chunk(2, dim)[0] * torch.sigmoid(x.chunk(2, dim)[1]),
}
