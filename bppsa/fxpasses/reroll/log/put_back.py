"""A piece put back where it is a view of a value: what a change of a view in place makes of the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue, stack_spec
from bppsa.fxpasses.reroll.log.places import span_of

aten = torch.ops.aten
Emit = Callable[[Any, Sequence[Any], Any], LoggedValue]  # target, arguments, the shape and dtype of what it gives


def emit_shaped(emit: Emit, target: Any, leaves: list[Any], like: LoggedValue, dim: int, many: int) -> LoggedValue:
    """An op that gives what `like` is, but for `many` along `dim`."""
    shape = (*like.shape[:dim], many, *like.shape[dim + 1 :])
    return emit(target, leaves, (((None,) * len(leaves), ()), Like(torch.Size(shape), like.dtype)))


def put_between(
    emit: Emit, value: LoggedValue, piece: LoggedValue, dim: int, first: int, last: int, like: LoggedValue
) -> LoggedValue:
    """`value` with `piece` from `first` to `last` along `dim`: a cat, which can be part of a cell."""
    parts = [piece]
    if first > 0:
        parts.insert(0, emit_shaped(emit, aten.slice.Tensor, [value, dim, 0, first], like, dim, first))
    end = like.shape[dim]
    if last < end:
        parts.append(emit_shaped(emit, aten.slice.Tensor, [value, dim, last, end], like, dim, end - last))
    return emit(aten.cat.default, [*parts, dim], (stack_spec(len(parts)), like))


def scattered(
    emit: Emit, value: LoggedValue, piece: LoggedValue, view: LoggedOp, item: int, like: LoggedValue
) -> LoggedValue:
    span = span_of(view, like.shape)
    if span is not None:
        return put_between(emit, value, piece, *span, like)
    given = view.leaves[1:]
    return emit(SCATTERS[view.target], [value, piece, *given], (((None,) * (2 + len(given)), ()), like))


def split_scatter(
    emit: Emit, value: LoggedValue, piece: LoggedValue, view: LoggedOp, item: int, like: LoggedValue
) -> LoggedValue:
    size, dim = view.leaves[1], (view.leaves[2] if len(view.leaves) > 2 else 0) % len(like.shape)
    return put_between(emit, value, piece, dim, item * size, item * size + piece.shape[dim], like)


def reshaped(
    emit: Emit, value: LoggedValue, piece: LoggedValue, view: LoggedOp, item: int, like: LoggedValue
) -> LoggedValue:
    return emit(aten.reshape.default, [piece, *like.shape], (((None, (None,) * len(like.shape)), ()), like))


def again(
    emit: Emit, value: LoggedValue, piece: LoggedValue, view: LoggedOp, item: int, like: LoggedValue
) -> LoggedValue:
    """A view that undoes itself."""
    return emit(view.target, [piece, *view.leaves[1:]], (view.spec, like))


SCATTERS: Mapping[Any, Any] = {
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
}
PUT_BACK: Mapping[Any, Callable[..., LoggedValue]] = {
    **dict.fromkeys(SCATTERS, scattered),
    **dict.fromkeys((aten.split.Tensor, aten.unsafe_split.Tensor), split_scatter),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default), reshaped),
    **dict.fromkeys((aten.unsqueeze.default, aten.squeeze.dim), reshaped),
    **dict.fromkeys((aten.t.default, aten.transpose.int), again),
}
