"""Which op is written down for one that a call has done: of sizes, of new values, of an element of each row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.common.chain import HANDED_ON
from bppsa.fxpasses.recording.row_elements import OF_ROWS, may_be_of_rows, numbers_rows
from bppsa.fxpasses.reroll.log.ops import LoggedValue, Nesting

aten = torch.ops.aten


# Whose result depends on the sizes of what they are given alone, as ops of these sizes: no carry begins there.
SIZED: dict[Any, Any] = {
    aten.empty_like.default: aten.empty.memory_format,
    aten.zeros_like.default: aten.zeros.default,
    aten.ones_like.default: aten.ones.default,
    aten.full_like.default: aten.full.default,
    aten.rand_like.default: aten.rand.default,
    aten.randn_like.default: aten.randn.default,
    aten.new_zeros.default: aten.zeros.default,
    aten.new_ones.default: aten.ones.default,
    aten.new_empty.default: aten.empty.memory_format,
    aten.new_full.default: aten.full.default,
}


POSTPONED = {aten.select.int, aten.slice.Tensor, aten.view.default, aten.t.default, aten.transpose.int}


FILLS_PLACE = {aten.zero_.default: 0, aten.fill_.Scalar: None}


OVERWRITES = {aten.copy_.default, *FILLS_PLACE}


# What is written in place, and what returns the same from the same random numbers.
DRAWS = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.exponential_.default: aten.exponential.default,
}


def sized(func: Any, leaves: list[Any], out: Tensor) -> tuple[Any, list[Any], Any]:
    """The op of sizes in the place of one of `SIZED`, whose leaves begin with a tensor; of new_full come its sizes, and
    then, as in full_like, the number that it fills with."""
    target, sizes = SIZED[func], list(out.shape)
    fill = []
    if target is aten.full.default:
        at = 1 + (len(sizes) if func is aten.new_full.default else 0)
        fill = leaves[at : at + 1]
    spec = ((None,) * len(sizes), *(None for _ in fill)), (("dtype", None), ("device", None))
    return target, [*sizes, *fill, out.dtype, out.device], spec


def without_rows(func: Any, leaves: list[Any], spec: Nesting) -> tuple[Any, list[Any], Nesting]:
    """The op of ours in the place of an index by all rows and one list more; any other op as it is."""
    if func not in OF_ROWS or spec[0][1] != (None, None) or not is_of_rows(*leaves[:3]):
        return func, leaves, spec
    x, _, at, *more = leaves
    more = [*more, False][:2] if more else []
    return OF_ROWS[func], [x, at, *more], ((None,) * (2 + len(more)), ())


def is_of_rows(x: LoggedValue, rows: Any, at: Any) -> bool:
    if not (isinstance(rows, LoggedValue) and isinstance(at, LoggedValue) and may_be_of_rows(x, (rows, at))):
        return False
    op = rows.op
    while op is not None and op.target in HANDED_ON:
        op = op.leaves[0].op
    return op is not None and numbers_rows(op.target, op.leaves, x.shape[0])
