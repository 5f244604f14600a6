"""A value for each step, as one tensor with steps first: a view of what they were taken from, if any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue, flatten

aten = torch.ops.aten


class OpWriter:
    """Writes ops that the call has not done."""

    def __init__(self) -> None:
        self.ops: list[LoggedOp] = []

    def __call__(self, target: Any, args: Sequence[Any], *likes: Like | LoggedValue, single: bool = True) -> LoggedOp:
        leaves, spec = flatten(args, {})
        op = LoggedOp(target, leaves, spec).gives(*likes, single=single)
        self.ops.append(op)
        return op

    def one(self, target: Any, args: Sequence[Any], shape: Sequence[int], dtype: torch.dtype) -> LoggedValue:
        return self(target, args, Like(torch.Size(shape), dtype)).outs[0]


def column(values: Sequence[LoggedValue], write: OpWriter) -> LoggedValue:
    """[T, ...] of values of one shape."""
    first = values[0]
    shape, dtype = (len(values), *first.shape), first.dtype
    if all(value is first for value in values):
        return write.one(expanded, [first, len(values)], shape, dtype)
    taken = [taken_from(value) for value in values]
    source = taken[0]
    if source is not None and all(each is not None and each[:2] == source[:2] for each in taken):
        base, dim, _ = source
        indices = [each[2] for each in taken if each is not None]
        return write.one(*sliced(base, dim, indices), shape, dtype)
    return write.one(aten.stack.default, [list(values), 0], shape, dtype)


def taken_from(value: LoggedValue) -> tuple[LoggedValue, int, int] | None:
    """What it is a slice of, along which dim, and which."""
    op = value.op
    if op is None or not op.grad or op.target not in (aten.select.int, aten.unbind.int):
        return None
    base, *rest = op.leaves
    dim = (rest[0] if rest else 0) % len(base.shape)
    index = rest[1] if op.target is aten.select.int else value.item
    return base, dim, index % base.shape[dim]


def sliced(base: LoggedValue, dim: int, indices: list[int]) -> tuple[Callable[..., torch.Tensor], list[Any]]:
    steps = {after - before for before, after in itertools.pairwise(indices)}
    if steps in ({1}, {-1}):
        return in_a_row, [base, dim, min(indices), len(indices), steps == {-1}]
    return picked, [base, dim, indices]


# Targets of ops: with steps first, what `column` has found to be slices of one tensor.


def in_a_row(base: torch.Tensor, dim: int, first: int, count: int, back: bool) -> torch.Tensor:
    found = base.movedim(dim, 0)[first : first + count]
    return found.flip(0) if back else found


def picked(base: torch.Tensor, dim: int, indices: Sequence[int]) -> torch.Tensor:
    return base.movedim(dim, 0).index_select(0, torch.tensor(indices, device=base.device))


def expanded(value: torch.Tensor, count: int) -> torch.Tensor:
    return value.unsqueeze(0).expand(count, *value.shape)


def with_rows(steps: torch.Tensor, rows: int, dims: int) -> torch.Tensor:
    """[T, *] -> [T, B, *], as broadcasting against values of `dims` dims would see it."""
    shape = steps.shape[1:]
    wide = steps.reshape(len(steps), *(1,) * (dims - len(shape)), *shape)
    return wide.expand(len(steps), rows, *wide.shape[2:])


def numbers(like: torch.Tensor, values: Sequence[float], sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """[T, *sizes] of a number for each step, on the device of `like`."""
    made = torch.tensor(values, dtype=dtype, device=like.device)
    return made.reshape(-1, *(1 for _ in sizes)).expand(-1, *sizes)
