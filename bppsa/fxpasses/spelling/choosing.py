"""Elements that are chosen along a dimension of rows [B, ...]: the best ones, and those at places that are numbers
themselves.

What is not chosen is selected away, never multiplied by zero: infinities of others stay outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from bppsa.common.chain import ALONG_BATCH
from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.pieces import best_place, kept, number, one_place, places, taken
from bppsa.sparsity.rules.matrix_ops import CHECKED, as_one

MOST_PIECES = 64  # of one row, each with a line of code of its own
MOST_BEST = 16  # each costs a pass over the row: sorting 33 columns is slower than the loop, and compiles for a minute


def own_axis(x: Tensor, dim: int | None) -> int:
    """The dimension, counted from the front. Raises `Unsupported` where it is the batch's; None is all of them."""
    if x.dim() < 2 or dim is None or dim % x.dim() == 0:
        raise Unsupported(ALONG_BATCH)
    return dim % x.dim()


def own_axes(x: Tensor, dims: int | Sequence[int] | None) -> list[int]:
    return [own_axis(x, dim) for dim in ([dims] if isinstance(dims, int) else dims or (None,))]


def few(pieces: int, most: int = MOST_PIECES) -> None:
    if pieces > most:
        raise Unsupported(f"takes {pieces} columns one by one, more than {most}")


# The best of a row ---------------------------------------------------------------------------------------------------


def extremum_place(sign: float) -> Callable[..., Tensor]:
    def place(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        axis = own_axis(x, dim)
        return kept(number(best_place(x, axis, sign), x, axis), axis, keepdim)

    return place


def place_among(
    sorted_values: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many of the sorted values, [n] or [B, ..., n], are less than each x, or no more (right); all for a NaN."""
    if sorter is not None:
        raise Unsupported("searches what is sorted by a table")
    values, each = sorted_values.unsqueeze(-2) if sorted_values.dim() > 1 else sorted_values, x.unsqueeze(-1)
    behind = each < values if right or side == "right" else each <= values
    count = torch.logical_not(behind).sum(-1).clamp(0, sorted_values.shape[-1])
    return count.to(torch.int32 if out_int32 else torch.int64)


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    axis = own_axis(x, dim)
    return x.amin(axis, keepdim=keepdim), x.amax(axis, keepdim=keepdim)


def best(x: Tensor, axis: int, count: int, sign: float) -> Iterator[tuple[Tensor, Tensor]]:
    """The value and the place of the largest (sign 1) or smallest (-1), then of the next, the dimension kept."""
    few(count, MOST_BEST)
    at, open_to = places(x, axis), torch.ones_like(x, dtype=torch.bool)
    order, last = x, None
    if sign < 0 and x.dtype.is_floating_point:  # a NaN is larger than any number
        last = torch.isnan(x)
        order = torch.where(last, math.inf, x)
    for _ in range(count):
        place = best_place(order, axis, sign, open_to, last)
        yield taken(x, axis, place), place
        open_to = torch.logical_and(open_to, at != place)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    if not k:
        raise Unsupported("makes a value without columns")
    refuse_equal_ones(x)
    axis = own_axis(x, dim)
    found = [alone(x, axis, *one) for one in best(x, axis, k, 1.0 if largest else -1.0)]
    return in_order(x, axis, found)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    axis = own_axis(x, dim)
    if x.dtype is torch.bool:
        values, found = sort(x.long(), dim, descending)
        return values.bool(), found
    return in_order(x, axis, best(x, axis, x.shape[axis], 1.0 if descending else -1.0))


def in_order(x: Tensor, axis: int, chosen: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The values and the places of all."""
    values, found = zip(*chosen, strict=True)
    return torch.cat(values, axis), number(torch.cat(found, axis), x, axis)


def alone(x: Tensor, axis: int, value: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Looked at, and not finite where others equal it: which of them PyTorch takes is a matter of its algorithm."""
    once = (x == value).sum(axis, keepdim=True) == 1
    found = torch.where(once, value, math.nan), torch.where(once, place, math.nan)
    return as_one(CHECKED, found[0]), as_one(CHECKED, found[1])


def refuse_equal_ones(x: Tensor) -> None:
    """Raises `Unsupported` for whole numbers: several are often equal, and only `sort` says which comes first."""
    if not x.dtype.is_floating_point:
        raise Unsupported("chooses among whole numbers that may be equal", mend="use sort")


def kth_value(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest, from the side that is nearer."""
    axis = own_axis(x, dim)
    refuse_equal_ones(x)
    behind = x.shape[axis] - k
    *_, found = best(x, axis, k, -1.0) if k <= behind else best(x, axis, behind + 1, 1.0)
    value, place = alone(x, axis, *found)
    return kept(value, axis, keepdim), kept(number(place, x, axis), axis, keepdim)


def median(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The median: the smaller one in the middle of an even number, and a NaN where there is one."""
    axis = own_axis(x, dim)
    value, place = kth_value(x, (x.shape[axis] + 1) // 2, dim, keepdim=True)
    if x.dtype.is_floating_point:
        most = best_place(x, axis, 1.0)
        largest = taken(x, axis, most)  # a NaN is
        broken = torch.isnan(largest)
        value, place = torch.where(broken, largest, value), torch.where(broken, number(most, x, axis), place)
    return kept(value, axis, keepdim), kept(place, axis, keepdim)


# Choosing by numbers -------------------------------------------------------------------------------------------------


def nothing(x: Tensor) -> float:
    """What stands where PyTorch raises an error: NaN; among whole numbers, whose places `bounded` checks, any."""
    return math.nan if x.dtype.is_floating_point else False


def chosen(place: Tensor, options: Sequence[Tensor]) -> Tensor:
    """options[place]"""
    few(len(options))
    found = torch.where(place == 0, options[0], nothing(options[0]))
    for i, option in enumerate(options[1:], 1):
        found = torch.where(place == i, option, found)
    return found


def from_start(index: Tensor, length: int) -> Tensor:
    return torch.where(index < 0, index + length, index)


def lookup(table: Tensor, index: Tensor) -> Tensor:
    """table [m, *n], index [B, ...] -> [B, ..., *n]"""
    if index.dim() < 1 or table.dim() < 1:
        raise Unsupported(f"looks up {list(index.shape)} in {list(table.shape)}")
    few(table.shape[0])
    return chosen(index.view(*index.shape, *(1,) * (table.dim() - 1)), table.unbind(0))


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    lists = [at for at in indices if at is not None]
    if len(lists) == len(indices):
        return lookup(x.flatten(0, len(lists) - 1), one_place(x.shape, lists))
    together = side_by_side(x, indices)
    if together is not None:
        return columns_at(*together)
    axis, at = only_axis(indices)
    return columns_at(x, axis, from_start(at, x.shape[axis]))


def side_by_side(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, int, Tensor] | None:
    """x with the dimensions that several indices are for as one, which that is, and the places in it, -1 for none. None
    of other indices."""
    given = [axis for axis, at in enumerate(indices) if at is not None]
    if len(given) < 2 or given[0] == 0 or given != list(range(given[0], given[-1] + 1)):
        return None
    at = one_place(x.shape[given[0] :], [at for at in indices if at is not None])
    return x.flatten(given[0], given[-1]), given[0], at


def only_axis(indices: Sequence[Tensor | None]) -> tuple[int, Tensor]:
    """The one dimension that is indexed, and by what."""
    given = [(axis, at) for axis, at in enumerate(indices) if at is not None]
    if len(given) != 1 or given[0][0] == 0:
        raise Unsupported("takes elements of several rows", mend="use torch.gather or torch.where")
    return given[0]


def columns_at(x: Tensor, dim: int, at: Tensor) -> Tensor:
    """x [B, ..., n, ...], at [m, ...] -> [B, ..., m, ..., ...]"""
    axis = own_axis(x, dim)
    few(x.shape[axis])
    place = along(at.reshape(-1), x, axis)
    found = chosen(place, x.split(1, axis))
    return found if at.dim() == 1 else found.unflatten(axis, at.shape)


def selected(x: Tensor, dim: int, at: Tensor) -> Tensor:
    """The rows of a table, which are numbered from the start."""
    return columns_at(x, dim, at) if dim % x.dim() else lookup(x, at)


def along(at: Tensor, x: Tensor, axis: int) -> Tensor:
    """[m] as it lies along an axis of x."""
    return at.view([-1 if d == axis else 1 for d in range(x.dim())])


def gather(x: Tensor, dim: int, at: Tensor, *, sparse_grad: bool = False) -> Tensor:
    axis = own_axis(x, dim)
    few(at.shape[axis])
    x = narrowed(x, at, axis)
    return torch.cat([within(place, x, axis, taken(x, axis, place)) for place in at.split(1, axis)], axis)


def narrowed(x: Tensor, at: Tensor, axis: int) -> Tensor:
    """The part of x that an index with fewer elements in another dimension reaches."""
    for d in range(1, x.dim()):
        x = x if d == axis or x.shape[d] == at.shape[d] else x.narrow(d, 0, at.shape[d])
    return x


def within(place: Tensor, x: Tensor, axis: int, value: Tensor) -> Tensor:
    """The value where the place is one of x."""
    return torch.where(torch.logical_and(place >= 0, place < x.shape[axis]), value, nothing(x))
