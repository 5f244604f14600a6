"""Running and whole sums, products and extrema of the columns of rows [B, ...], and whether any or all of them hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.recording.pieces import kept, number, places
from bppsa.fxpasses.spelling.choosing import own_axes, own_axis


def running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Each column with all before it, by doubling: log2(n) ops."""

    def run(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        axis, n = own_axis(x, dim), x.shape[dim]
        for reach in doubling(n):
            rest = combine(x.narrow(axis, 0, n - reach), x.narrow(axis, reach, n - reach))
            x = torch.cat([x.narrow(axis, 0, reach), rest], axis)
        return x

    return run


def running_logsumexp(x: Tensor, dim: int) -> Tensor:
    """The running logsumexp; the gradient of a single column is NaN where that is not finite."""
    axis = own_axis(x, dim)
    if x.shape[axis] == 1:
        return torch.logsumexp(x, [axis], keepdim=True)
    return running(torch.logaddexp)(x, axis)


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
    """The product, by halves, so that a zero spoils no gradient of the others."""
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


def count(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    return torch.ne(x, 0).sum(own_axes(x, dim))
