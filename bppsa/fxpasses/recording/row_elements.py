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
from bppsa.sparsity.rules.matrix_ops import defined

aten = torch.ops.aten
ELEMENTS = defined("row_elements", "Tensor x, Tensor at", lambda x, at: x[torch.arange(len(x)), at])
PUT = defined(
    "row_put",
    "Tensor x, Tensor at, Tensor values, bool accumulate",
    lambda x, at, values, accumulate: aten.index_put(x, [torch.arange(len(x)), at], values, accumulate),
)
OF_ROWS = {aten.index.Tensor: ELEMENTS, aten.index_put.default: PUT}
# Of the numbers from 0 on; before them stand arguments that are these.
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


def places(x: Tensor, at: Tensor) -> Tensor:
    """[B, 1, *m] for x [B, n, *m] and at [B]; a place below 0 counts from the end."""
    found = torch.where(at < 0, at + x.shape[1], at)
    return found.view(-1, *(1,) * (x.dim() - 1)).expand(-1, 1, *x.shape[2:])


def elements(x: Tensor, at: Tensor) -> Tensor:
    """x [B, n, *m], at [B] -> [B, *m]"""
    return x.gather(1, places(x, at)).squeeze(1)


def put(x: Tensor, at: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    """values: [B, *m], or what is expanded to it."""
    write = torch.scatter_add if accumulate else torch.scatter
    return write(x, 1, places(x, at), values.expand(x.shape[:1] + x.shape[2:]).unsqueeze(1))


SPELLED: dict[Any, Callable[..., Tensor]] = {aten.index.Tensor: elements, aten.index_put.default: put}
