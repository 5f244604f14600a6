"""What a step reads of something that grows: the last columns of a cat of a cat are those of its last pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bppsa.fxpasses.reroll.log.memory import WINDOW
from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.log.places import Span, span_of
from bppsa.fxpasses.reroll.views.joined import dim_of, is_cat, items_of

aten = torch.ops.aten
ShownPiece = tuple[LoggedValue, int, int]  # a value, and which of its columns


def of_last_pieces(ops: Sequence[LoggedOp]) -> list[LoggedOp]:
    """The ops, each short slice of a cat that grows, as `y[:, -p:]` and `y[:, -1]` are of `y = torch.cat([y, new], 1)`,
    being put together from the pieces that it shows: the same in each step."""
    found = []
    for op in ops:
        pieces = pieces_of(op)
        if pieces and op.target is aten.select.int:
            ((value, at, _),) = pieces
            op.leaves = [value, op.leaves[1], at]
        elif pieces:
            found += put_together(op, pieces)
        found.append(op)
    return found


def pieces_of(op: LoggedOp) -> list[ShownPiece]:
    """None of them where the op is no such slice."""
    whole = op.leaves[0] if op.leaves else None
    if op.target not in (aten.slice.Tensor, aten.select.int) or not isinstance(whole, LoggedValue):
        return []
    span = span_of(op, whole.shape) or step_of(op, whole.shape)
    if span is None or not 0 < span[2] - span[1] <= WINDOW or not grows(whole, span[0], op):
        return []
    dim, first, last = span
    end, found = whole.shape[dim], list[ShownPiece]()
    for walked, item in enumerate(from_last(whole, dim, op)):
        if item.dtype != whole.dtype or len(item.shape) != len(whole.shape):  # which a cat converts, or leaves out
            return []
        begin = end - item.shape[dim]
        if begin < last:
            found.append((item, max(first - begin, 0), min(last, end) - begin))
        if begin <= first:
            return found[::-1]
        if walked >= WINDOW:
            break
        end = begin
    return []


def step_of(op: LoggedOp, shape: Sequence[int]) -> Span | None:
    """The span of an op that selects one column; None for others."""
    if op.target is not aten.select.int:
        return None
    _, dim, at = op.leaves
    return dim % len(shape), at % shape[dim], at % shape[dim] + 1


def grows(value: LoggedValue, dim: int, reader: LoggedOp) -> bool:
    """Whether it is a cat that begins with another one along the same dim."""
    cat = cat_of(value, dim, reader)
    return cat is not None and cat_of(items_of(cat)[0], dim, reader) is not None


def cat_of(value: Any, dim: int, reader: LoggedOp) -> LoggedOp | None:
    """What has put it together along `dim`. Gradients are as the reader has them."""
    op = value.op if isinstance(value, LoggedValue) else None
    return op if op is not None and is_cat(op) and op.grad == reader.grad and dim_of(op) == dim else None


def from_last(value: LoggedValue, dim: int, reader: LoggedOp) -> Iterator[LoggedValue]:
    """Its pieces, the last first."""
    while cat := cat_of(value, dim, reader):
        value, *rest = items_of(cat)
        yield from reversed(rest)
    yield value


def put_together(op: LoggedOp, pieces: Sequence[ShownPiece]) -> list[LoggedOp]:
    """Makes a cat of the slice; what is to be done before it."""
    dim = (op.leaves[1] if len(op.leaves) > 1 else 0) % len(op.outs[0].shape)
    before, items = list[LoggedOp](), list[Any]()
    for value, first, last in pieces:
        if (first, last) != (0, value.shape[dim]):
            shape = torch.Size([*value.shape[:dim], last - first, *value.shape[dim + 1 :]])
            part = LoggedOp(aten.slice.Tensor, [value, dim, first, last], ((None,) * 4, ()), op.grad, op.lines)
            before.append(part.gives(Like(shape, value.dtype)))
            items.append(part.outs[0])
        else:
            items.append(value)
    op.join(items, dim)
    return before
