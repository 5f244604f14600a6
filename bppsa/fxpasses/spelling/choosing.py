"""Elements of rows that are chosen: the best ones, and those at places that are numbers themselves.

What is not chosen is selected away, never multiplied by zero: infinities of others stay outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.pieces import best_place, kept, number, places, taken

MOST_PIECES = 64  # of one row, each with a line of code of its own
MOST_BEST = 16  # each costs a pass over the row: sorting 33 columns is slower than the loop, and compiles for a minute


def own_columns(x: Tensor, dim: int | Sequence[int] | None) -> None:
    """Raise `Unsupported` unless the op works along the columns of rows. None: along all dimensions."""
    dims = [dim] if isinstance(dim, int) else dim or [0]
    if x.dim() != 2 or any(d % x.dim() != 1 for d in dims):
        raise Unsupported(Reason("works along the batch dimension"))


def few(pieces: int, most: int = MOST_PIECES) -> None:
    if pieces > most:
        raise Unsupported(Reason(f"takes {pieces} columns one by one, more than {most}"))


# The best of a row ---------------------------------------------------------------------------------------------------


def extremum_place(sign: float) -> Callable[..., Tensor]:
    def place(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        own_columns(x, dim)
        return kept(number(best_place(x, 1, sign), x, 1), 1, keepdim)

    return place


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    own_columns(x, dim)
    return x.amin(1, keepdim=keepdim), x.amax(1, keepdim=keepdim)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    own_columns(x, dim)
    few(k, MOST_BEST)
    at, values, found = places(x, 1), [], []
    open_to = torch.ones_like(x, dtype=torch.bool)
    for _ in range(k):
        place = best_place(x, 1, 1.0 if largest else -1.0, open_to)
        values.append(taken(x, 1, place))
        found.append(place)
        open_to = torch.logical_and(open_to, at != place)
    return torch.cat(values, 1), number(torch.cat(found, 1), x, 1)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return topk(x, x.shape[1] if x.dim() == 2 else 0, dim, descending)


# Choosing by numbers -------------------------------------------------------------------------------------------------


def chosen(place: Tensor, options: Sequence[Tensor]) -> Tensor:
    """options[place]; NaN where there is none, for which PyTorch raises an error."""
    few(len(options))
    found = torch.where(place == 0, options[0], math.nan)
    for i, option in enumerate(options[1:], 1):
        found = torch.where(place == i, option, found)
    return found


def from_start(index: Tensor, length: int) -> Tensor:
    return torch.where(index < 0, index + length, index)


def lookup(table: Tensor, index: Tensor) -> Tensor:
    """table [m, n], index [B] -> [B, n]"""
    if index.dim() != 1 or table.dim() != 2:
        raise Unsupported(Reason(f"looks up {list(index.shape)} in {list(table.shape)}"))
    few(table.shape[0])
    return chosen(index.unsqueeze(1), table.unbind(0))


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if len(indices) == 1 and indices[0] is not None:
        return lookup(x, from_start(indices[0], x.shape[0]))
    first, at = indices
    if first is not None or at is None:
        raise Unsupported(Reason("takes elements of several rows"))
    return columns_at(x, 1, at)


def columns_at(x: Tensor, dim: int, at: Tensor) -> Tensor:
    """x [B, n], at [m] -> [B, m]"""
    own_columns(x, dim)
    if at.dim() != 1:
        raise Unsupported(Reason(f"takes columns by an index of {list(at.shape)}"))
    few(x.shape[1])
    return chosen(from_start(at, x.shape[1]).unsqueeze(0), x.split(1, 1))


def gather(x: Tensor, dim: int, at: Tensor, *, sparse_grad: bool = False) -> Tensor:
    own_columns(x, dim)
    few(at.shape[1])
    return torch.cat([within(place, x, taken(x, 1, place)) for place in at.split(1, 1)], 1)


def within(place: Tensor, x: Tensor, value: Tensor) -> Tensor:
    """NaN where the place is none of x, for which PyTorch raises an error."""
    return torch.where(torch.logical_and(place >= 0, place < x.shape[1]), value, math.nan)


def scatter(x: Tensor, dim: int, at: Tensor, source: Tensor | float) -> Tensor:
    own_columns(x, dim)
    few(at.shape[1])
    for j, place in enumerate(at.split(1, 1)):
        new = source[:, j : j + 1] if isinstance(source, Tensor) else source
        x = within(place, x, torch.where(places(x, 1) == place, new, x))
    return x
