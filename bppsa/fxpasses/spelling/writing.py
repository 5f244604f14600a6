"""Elements of rows [B, ...] that are written, at places that are numbers or where a mask is true, as a choice between
what was there and what is new."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.pieces import places, taken
from bppsa.fxpasses.spelling.choosing import along, few, from_start, narrowed, only_axis, own_axis, side_by_side, within
from bppsa.sparsity.rules.own_gradient import ATTACHED

Written = Callable[[Tensor, "Tensor | float"], "Tensor | float"]  # of what was there and what is given
MASKS = (torch.bool, torch.uint8)


def replaced(old: Tensor, new: Tensor | float) -> Tensor | float:
    return new


def added(old: Tensor, new: Tensor | float) -> Tensor:
    return old + new


def put(x: Tensor, axis: int, at: Tensor, new: Tensor | float, write: Written) -> Tensor:
    """at, new: with one element along the axis."""
    return within(at, x, axis, torch.where(places(x, axis) == at, write(x, new), x))


def scatter(write: Written) -> Callable[..., Tensor]:
    """at, source: of x's shape, but along the dimension."""

    def scattered(x: Tensor, dim: int, at: Tensor, source: Tensor | float) -> Tensor:
        axis = own_axis(x, dim)
        few(at.shape[axis])
        if any(n != m for d, (n, m) in enumerate(zip(x.shape, at.shape, strict=True)) if d != axis):
            raise Unsupported(f"writes {list(at.shape)} elements into {list(x.shape)}")
        for j in range(at.shape[axis]):
            new = source.narrow(axis, j, 1) if isinstance(source, Tensor) else source
            new = narrowed(new, at, axis) if isinstance(new, Tensor) else new
            x = put(x, axis, at.narrow(axis, j, 1), new, write)
        return x

    return scattered


def scatter_reduce(
    x: Tensor, dim: int, at: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Sums, means and extrema of what is given for each place, and of what was there unless `include_self` is false.
    Equal extrema share the gradient, in PyTorch with what was there even where that is left out."""
    if reduce not in REDUCTIONS:
        raise Unsupported(f"scatters by reduce={reduce!r}", mend=f"use one of {', '.join(REDUCTIONS)}")
    source = source[tuple(slice(size) for size in at.shape)]
    ones = torch.ones_like(source)
    own = torch.ones_like(x) if include_self else torch.zeros_like(x)
    count = scatter(added)(own, dim, at, ones)
    before = x
    if not include_self:
        x = torch.where(count == 0, x, REDUCTIONS[reduce])
    if reduce in ("sum", "mean"):
        total = scatter(added)(x, dim, at, source)
        return total if reduce == "sum" else total / count.clamp(min=1)
    better = torch.maximum if reduce == "amax" else torch.minimum
    best = scatter(lambda old, new: better(old, torch.as_tensor(new)))(x.detach(), dim, at, source.detach())
    axis = own_axis(x, dim)
    hit = torch.cat([taken(best, axis, place) for place in at.split(1, axis)], axis) == source
    shares = scatter(added)((before == best).to(x.dtype), dim, at, hit.to(x.dtype)).detach()
    given = scatter(added)(torch.where(x == best, x, 0.0), dim, at, torch.where(hit, source, 0.0))
    return ATTACHED(best, given, torch.reciprocal(shares))


REDUCTIONS = {"sum": 0.0, "mean": 0.0, "amax": -math.inf, "amin": math.inf}  # and what changes none


def put_columns(write: Written) -> Callable[..., Tensor]:
    """at [m]: columns, in the order of `source`."""

    def written(x: Tensor, dim: int, at: Tensor, source: Tensor | float, *, alpha: float = 1) -> Tensor:
        axis = own_axis(x, dim)
        few(at.numel())
        for j, place in enumerate(at.reshape(-1).split(1)):
            new = source.narrow(axis, j, 1) if isinstance(source, Tensor) and source.dim() else source
            x = put(x, axis, along(place, x, axis), new if alpha == 1 else new * alpha, write)
        return x

    return written


def index_fill(x: Tensor, dim: int, at: Tensor, value: Tensor | float) -> Tensor:
    """Unlike for the other ops a negative place counts from the end."""
    return put_columns(replaced)(x, dim, from_start(at, x.shape[dim]), value)


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x[indices] = values"""
    write = added if accumulate else replaced
    masks = [(d, at.bool()) for d, at in enumerate(indices) if at is not None and at.dtype in MASKS]
    if masks and sum(at is not None for at in indices) == 1:
        return put_where(x, *masks[0], values, write)
    together = side_by_side(x, indices)
    flat, axis, at = together or (x, *only_axis(indices))
    if at.dim() != 1:
        raise Unsupported(f"writes at an index of {list(at.shape)}", mend="use torch.scatter")
    few(len(at))
    values = values.expand([len(at) if d == axis else n for d, n in enumerate(flat.shape)])
    at = at if together else from_start(at, x.shape[axis])
    return put_columns(write)(flat, axis, at, values).reshape(x.shape)


def put_where(x: Tensor, first: int, mask: Tensor, values: Tensor, write: Written) -> Tensor:
    """x[mask] = values: the mask takes dimensions of x from `first` on, in whose place `values` has one or none."""
    behind = x.dim() - first - mask.dim()
    if values.dim() > behind:
        if any(n != 1 for n in values.shape[: values.dim() - behind]):
            raise Unsupported("writes a value of its own where a mask is true", mend="use torch.where")
        values = values.reshape(values.shape[values.dim() - behind :])
    return torch.where(mask.view(*mask.shape, *(1,) * behind), write(x, values), x)
