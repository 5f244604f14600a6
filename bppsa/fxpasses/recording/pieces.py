"""Ops on values of several dimensions, as slices, concatenations, products and folds: rows of `decompose.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.sparsity.rules.rearrange import shuffled

aten = torch.ops.aten


def added(multiply: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Returns addmm, or another op that adds a product to a bias. multiply: makes the product."""

    def add(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        product = multiply(a, b) if alpha == 1 else multiply(a, b) * alpha
        if not beta:  # a bias that counts for nothing may be NaN
            return product
        return product + (bias if beta == 1 else bias * beta)

    return add


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return roll(x.flatten(), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        first = -shift % x.shape[dim]
        if first:
            x = torch.cat([x.narrow(dim, first, x.shape[dim] - first), x.narrow(dim, 0, first)], dim)
    return x


def constant_pad(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - i
        cut = max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0)
        x = x if cut == (0, x.shape[dim]) else x.narrow(dim, *cut)
        pieces = [filled(x, dim, n, value) for n in (max(before, 0), max(after, 0))]
        if before > 0 or after > 0:
            x = torch.cat([*pieces[: before > 0], x, *pieces[1 : 1 + (after > 0)]], dim)
    return x


def filled(like: Tensor, dim: int, count: int, value: float) -> Tensor:
    """A tensor of `count` along the dimension, with as many rows as `like`, however many these are."""
    if like.shape[dim] == 0:
        return like.new_full([count if d == dim else n for d, n in enumerate(like.shape)], value)
    one = like.narrow(dim, 0, 1)
    return torch.full_like(one if count <= 1 else torch.cat([one] * count, dim), value)


def slice_scatter(
    x: Tensor, part: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """x with `part` at every `step`th place."""
    dim %= x.dim()
    places = range(x.shape[dim])[slice(start, end, step)]
    if not places:
        return x
    between = [
        aten.slice.Tensor(x, dim, places[0] + offset, places[-1], step)
        for offset in range(1, step if places[1:] else 1)
    ]
    last = len(places) - 1
    pieces = [x.narrow(dim, 0, places[0])] * (places[0] > 0)
    if last:
        pieces.append(stack([part.narrow(dim, 0, last), *between], dim + 1).flatten(dim, dim + 1))
    pieces.append(part.narrow(dim, last, 1))
    rest = x.shape[dim] - places[-1] - 1
    return torch.cat([*pieces, *[x.narrow(dim, places[-1] + 1, rest)] * (rest > 0)], dim)


def select_scatter(x: Tensor, part: Tensor, dim: int, index: int) -> Tensor:
    """x with `part` at one place."""
    at = index % x.shape[dim]
    return slice_scatter(x, part.unsqueeze(dim), dim, at, at + 1)


def diagonal_scatter(x: Tensor, part: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """x with `part` on a diagonal, which lies along the last dimension of `part`."""
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    skipped = max(-offset, 0)
    by_row = constant_pad(part, [skipped, x.shape[dim1] - skipped - part.shape[-1]])
    rest = [d for d in range(x.dim()) if d not in (dim1, dim2)]
    order = [*rest, dim1, dim2]
    spread = by_row.unsqueeze(-1).permute([order.index(d) for d in range(x.dim())])
    return torch.where(counted(x, dim2) - counted(x, dim1) == offset, spread, x)


def standardised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x less its mean, divided by its deviation; then the mean, and one over the deviation."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = 1 / torch.sqrt((centred * centred).mean(dims, keepdim=True) + eps)
    return centred * rstd, mean, rstd


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x: [n, channels, *grid]. size: how many places the grid has."""
    hat, mean, rstd = standardised(x.reshape(n, groups, -1), [-1], eps)
    out = hat.reshape(x.shape)
    own = (-1, *[1] * (x.dim() - 2))
    out = out if weight is None else out * weight.view(own)
    return out if bias is None else out + bias.view(own), mean.squeeze(-1), rstd.squeeze(-1)


def one_place(sizes: Sequence[int], at: Sequence[Tensor]) -> Tensor:
    """Which of all elements stands at the places `at` of the first dimensions, of these sizes; below 0 a place counts
    from the end. Of several, -1 where one is out of range."""
    from_start = [torch.where(each < 0, each + size, each) for size, each in zip(sizes, at, strict=False)]
    found = from_start[0]
    if len(at) == 1:
        return found
    for size, each in zip(sizes[1:], from_start[1:], strict=False):
        found = found * size + each
    for size, each in zip(sizes, from_start, strict=False):
        found = torch.where(torch.logical_and(each >= 0, each < size), found, -1)
    return found


def counted(x: Tensor, dim: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """0, 1, ... n - 1 along the dimension."""
    return torch.arange(x.shape[dim], dtype=dtype).view([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])


def places(x: Tensor, dim: int) -> Tensor:
    """0, 1, ... n - 1 along the dimension: floating point where x is, else whole numbers."""
    return counted(x, dim, x.dtype if x.dtype.is_floating_point else torch.int64)


def best_place(x: Tensor, dim: int, sign: float, open_to: Tensor | None = None, last: Tensor | None = None) -> Tensor:
    """The first place of the largest (sign 1) or smallest (-1), the dimension kept; a NaN is both. open_to: which may
    be it. last: which are behind those that equal them."""
    x = x.detach() if sign > 0 else -x.detach()
    candidates, real = x, x.dtype.is_floating_point
    if open_to is not None:  # whole numbers have no infinity: the least of them, which is no better than an open one
        candidates = torch.where(open_to, x, -math.inf if real else x.amin([dim], keepdim=True))
    hit = candidates == candidates.amax([dim], keepdim=True)
    if real:
        hit = torch.logical_or(hit, torch.isnan(candidates))
    if open_to is not None:
        hit = torch.logical_and(hit, open_to)
    at, n = places(x, dim), x.shape[dim]
    if last is None:
        return torch.where(hit, at, n).amin([dim], keepdim=True)
    place = torch.where(hit, torch.where(last, at + n, at), 2 * n).amin([dim], keepdim=True)
    return torch.where(place < n, place, place - n)


def taken(x: Tensor, dim: int, place: Tensor) -> Tensor:
    """The element at its place, the dimension kept."""
    return torch.where(places(x, dim) == place, x, 0).sum([dim], keepdim=True).to(x.dtype)


def number(place: Tensor, x: Tensor, dim: int) -> Tensor:
    """Returns the place as PyTorch does, a whole number. The bounds change nothing; they tell how large it can be."""
    return place.clamp(0, x.shape[dim] - 1).long()


def kept(value: Tensor, dim: int, keepdim: bool) -> Tensor:
    return value if keepdim else value.squeeze(dim)


def extremum(sign: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """The largest or smallest along a dimension, and where it is: of equal ones the first, which gets the gradient."""

    def found(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if x.dtype is torch.bool:
            value, at = found(x.long(), dim, keepdim)
            return value.bool(), at
        place = best_place(x, dim, sign)
        return kept(taken(x, dim, place), dim, keepdim), kept(number(place, x, dim), dim, keepdim)

    return found


def safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Zeros where all is -inf, also as gradients."""
    nothing = x.amax([dim], keepdim=True) == -math.inf
    return torch.where(nothing, 0.0, torch.softmax(torch.where(nothing, 0.0, x), dim))


def pixel_shuffle(x: Tensor, by: int) -> Tensor:
    *rows, channels, high, wide = x.shape
    apart = x.reshape(*rows, channels // by**2, by, by, high, wide)
    return apart.movedim((-4, -3), (-3, -1)).reshape(*rows, channels // by**2, high * by, wide * by)


def pixel_unshuffle(x: Tensor, by: int) -> Tensor:
    *rows, channels, high, wide = x.shape
    apart = x.reshape(*rows, channels, high // by, by, wide // by, by)
    return apart.movedim((-3, -1), (-4, -3)).reshape(*rows, channels * by**2, high // by, wide // by)


PIECES: dict[Any, Callable[..., Any]] = {
    aten.squeeze.default: lambda x: x.squeeze([dim for dim, size in enumerate(x.shape) if size == 1]),
    aten.baddbmm.default: added(torch.bmm),
    aten.mv.default: lambda matrix, vector: torch.mm(matrix, vector.unsqueeze(1)).squeeze(1),
    aten.stack.default: stack,
    aten.roll.default: roll,
    aten.pixel_shuffle.default: pixel_shuffle,
    **dict.fromkeys((aten.channel_shuffle.default, aten.native_channel_shuffle.default), shuffled),
    aten.pixel_unshuffle.default: pixel_unshuffle,
    aten.constant_pad_nd.default: constant_pad,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.native_group_norm.default: group_norm,
    aten.max.dim: extremum(1.0),
    aten.min.dim: extremum(-1.0),
    aten._safe_softmax.default: safe_softmax,
}
