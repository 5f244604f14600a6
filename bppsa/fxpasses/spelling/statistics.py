"""Moments, norms and distances of rows [B, ...]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.spelling.choosing import along, own_axes
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes = own_axes(x, dim)
    return x.var(axes, correction=correction, keepdim=keepdim), x.mean(axes, keepdim=keepdim)


def vector_norm(
    x: Tensor, order: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    axes = own_axes(x, dim)
    if order and all(x.shape[d] == 1 for d in axes):
        return size_of_one(x, order, axes, keepdim)
    if order == 2:
        return aten.linalg_vector_norm.default(x, order, axes, keepdim)
    if order in (math.inf, -math.inf):
        return largest(x, order, axes, keepdim)
    if order == 1:
        return x.abs().sum(axes, keepdim=keepdim)
    if order < 0:
        raise Unsupported(f"is a norm of order {order}")
    return norm_of_any_order(x, order, axes, keepdim)


def size_of_one(x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    """The norm of a row of one number, which has no square that leaves the range. The gradient is NaN where PyTorch
    divides infinities."""
    size = x.abs()
    if order not in (1, math.inf, -math.inf):
        size = ATTACHED(size.detach(), x, torch.where(size == 0, 0.0, x / size))
    return size if keepdim else size.squeeze(axes)


def largest(x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    """The norm of order inf or -inf. A row with a NaN has zeros for a gradient, as in PyTorch."""
    extremum = torch.amax if order > 0 else torch.amin
    size = x.abs()
    found = extremum(size.detach(), axes, keepdim=keepdim)
    of_numbers = extremum(torch.where(torch.isnan(size), 0.0, size), axes, keepdim=keepdim)
    return torch.where(torch.isnan(found), found, of_numbers)


def norm_of_any_order(x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    """The norm, with the gradient that PyTorch gives at zeros, which is zero: powers below one have none there."""
    zero = x == 0
    if order == 0:
        return torch.where(zero, 0.0, torch.ones_like(x)).sum(axes, keepdim=keepdim)
    powers = torch.where(zero, 0.0, torch.where(zero, 1.0, x.abs()).pow(order)).sum(axes, keepdim=keepdim)
    empty = powers == 0
    return torch.where(empty, 0.0, torch.where(empty, 1.0, powers).pow(1 / order))


def norm(x: Tensor, order: float | None, dim: Sequence[int], keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return vector_norm(x, 2 if order is None else order, dim, keepdim)


def distances(a: Tensor, b: Tensor, order: float, mode: int | None) -> Tensor:
    """The distance of each of a's vectors [B, P, M] to each of b's [B, R, M]."""
    return vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), order, [-1])


def nansum(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    numbers = ATTACHED(torch.where(torch.isnan(x), 0.0, x).detach(), x, (x == x).to(x.dtype))
    return numbers.sum(own_axes(x, dim), keepdim=keepdim)


def batch_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """Normalises with the running statistics, one of each channel."""
    out = (x - along(mean, x, 1)) * torch.rsqrt(along(variance, x, 1) + eps)
    out = out if w is None else out * along(w, x, 1)
    return out if b is None else out + along(b, x, 1), x, x
