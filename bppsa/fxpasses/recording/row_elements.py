"""`x[torch.arange(B), at]` and its assignment: an element of each row, as ops without the row's number.

An op of ours stands for it in a log of ops, as one of its own for each step; a recorder writes down a gather or a
scatter. What is indexed with is known to number the rows by the op that has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import HANDED_ON
from bppsa.common.graph import ancestors
from bppsa.fxpasses.recording.pieces import one_place
from bppsa.sparsity.rules.matrix_ops import LIBRARY, defined

aten = torch.ops.aten
ELEMENTS = defined("row_elements", "Tensor x, Tensor at", lambda x, at: x[torch.arange(len(x)), at])
PUT = defined(
    "row_put",
    "Tensor x, Tensor at, Tensor values, bool accumulate",
    lambda x, at, values, accumulate: aten.index_put(x, [torch.arange(len(x)), at], values, accumulate),
)


def over_batch(op: Any) -> Callable[..., tuple[Tensor, int]]:
    """The rule by which torch.vmap runs it: rows of all steps are rows of one batch."""

    def rule(info: Any, dims: Sequence[int | None], *given: Any) -> tuple[Tensor, int]:
        def as_rows(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            whole = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            return whole.flatten(0, 1)

        return op(*map(as_rows, given, dims)).unflatten(0, (info.batch_size, -1)), 0

    return rule


for _op in (ELEMENTS, PUT):
    torch.library.register_vmap(_op.name(), over_batch(_op), lib=LIBRARY)
OF_ROWS = {aten.index.Tensor: ELEMENTS, aten.index_put.default: PUT}
# Ops that give the numbers from 0 on, and the arguments with which they do, before the count.
NUMBERINGS: dict[Any, tuple[int, ...]] = {aten.arange.default: (), aten.arange.start: (0,)}


def made_by(node: fx.Node) -> fx.Node:
    """The op whose numbers these are."""
    while node.target in HANDED_ON:
        node = node.args[0]
    return node


def numbers_rows(target: Any, arguments: Sequence[Any], rows: int) -> bool:
    """Whether an op gives 0, 1, ... up to the last row."""
    before = NUMBERINGS.get(target)
    return before is not None and tuple(arguments[: len(before) + 1]) == (*before, rows)


def may_be_of_rows(x: Any, indices: Sequence[Any]) -> bool:
    """Whether it is indexed by two lists as long as x [B, n, ...]. These have a shape and a dtype."""
    lists = [index for index in indices if index is not None and index.dtype is torch.int64]
    return len(lists) == len(indices) == 2 and len(x.shape) > 1 and all(i.shape == x.shape[:1] for i in lists)


def may_be_elements(x: Tensor, indices: Sequence[Any]) -> bool:
    """Whether it is indexed by whole numbers in its first dimensions, two or more, in each row."""
    if not 2 <= len(indices) <= x.dim() or any(index is None or index.dtype is not torch.int64 for index in indices):
        return False
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    return shape[:1] == indices[0].shape[:1] == x.shape[:1]


def is_numbering(node: fx.Node, rows: int) -> bool:
    """Whether the op gives 0, 1, ... up to the last row along its first dimension, as `torch.arange(B)[:, None]` does.
    What is made of numbers alone is in its stand-in as it will be."""
    value = node.meta["val"]
    if value.dtype is not torch.int64 or value.shape[:1] != (rows,) or not of_numbers(node):
        return False
    return bool((value == torch.arange(rows).view(-1, *(1,) * (value.dim() - 1))).all())


def of_numbers(node: fx.Node) -> bool:
    """A detached stand-in has other numbers."""
    before = ancestors([node], lambda each: True)
    return all(each.op == "call_function" and each.target is not aten.detach.default for each in before)


def places(x: Tensor, at: Sequence[Tensor], shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """x [B, n, ..., *m] as [B, N, *m], and which of the N stand at the places `at`, one for each of the dimensions n,
    ..., as [B, K, *m]. shape: [B, *k], to which `at` broadcast."""
    found = one_place(x.shape[1:], at).expand(shape)
    found = found.unsqueeze(1) if found.dim() == 1 else found.flatten(1)
    x = x.flatten(1, len(at))
    return x, found.view(*found.shape, *(1,) * (x.dim() - 2)).expand(*found.shape, *x.shape[2:])


def elements(x: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """x [B, n, ..., *m], indices broadcast to [B, *k] -> [B, *k, *m]"""
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    whole, places_of = places(x, indices[1:], shape)
    found = whole.gather(1, places_of)
    return found.squeeze(1) if len(shape) == 1 else found.unflatten(1, shape[1:])


def put(x: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """values: [B, *k, *m], or what is expanded to it."""
    write = torch.scatter_add if accumulate else torch.scatter
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    whole, places_of = places(x, indices[1:], shape)
    values = values.expand(*shape, *x.shape[len(indices) :])
    values = values.unsqueeze(1) if len(shape) == 1 else values.flatten(1, len(shape) - 1)
    return write(whole, 1, places_of, values).view(x.shape)


SPELLED: dict[Any, Callable[..., Tensor]] = {aten.index.Tensor: elements, aten.index_put.default: put}
