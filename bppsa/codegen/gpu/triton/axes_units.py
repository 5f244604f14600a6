"""Whether a kernel's columns fall apart into units that have nothing to do with each other, as heads do: a program for
each of them then holds less, and more programs run.

An axis of each group is cut into as many parts. What a unit writes, no other may write or read; what nobody writes, all
may read. Sums over steps are added up for each program anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.codegen.gpu.triton.axes_tiles import moving
from bppsa.codegen.language.expr import Access, Shape, Strides
from bppsa.codegen.language.ir import Group, Kernel, Kind, Reduce

NEIGHBOURS = 8  # numbers of float32 that memory moves at once
LEAST = 256  # numbers of a unit's widest value: fewer leave a warp idle
MOST_TRIED = 64  # cuts of groups that are looked at


@dataclass(frozen=True)
class ColumnUnits:
    """count: of programs for a row. cuts: of each group, the axis that is cut into so many parts."""

    count: int
    cuts: tuple[int | None, ...]


def units_of(kernel: Kernel) -> ColumnUnits:
    """The units of a kernel, as many as there can be."""
    return found(kernel, LEAST)


@functools.lru_cache(maxsize=256)
def found(kernel: Kernel, least: int) -> ColumnUnits:
    """The units with at least so many numbers in the widest value of each."""
    none = ColumnUnits(1, (None,) * len(kernel.groups))
    if any(group.dots for group in kernel.groups):  # a product reads all columns
        return none
    widest = max(kernel.groups, key=lambda group: group.width, default=None)
    if widest is None:
        return none
    divisors = {d for size in widest.shape[:-1] for d in range(2, size + 1) if size % d == 0}
    for count in sorted(divisors, reverse=True):
        if widest.width // count >= least and (cuts := UnitSearch(kernel, count).found):
            return ColumnUnits(count, cuts)
    return none


class UnitSearch:
    """The cuts for so many units, by depth first."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.kernel, self.count, self.tried = kernel, count, 0
        written = {s.target.buffer for g in kernel.groups for s in g.stores if s.reduce is not Reduce.COLUMNS}
        self.owned = {b.name for b in kernel.buffers if b.name in written and b.kind is not Kind.COLUMN_SUM}
        nobody = {b.name: torch.full((b.width,), -1) for b in kernel.buffers if b.name in self.owned}
        self.found = self.cut((), nobody, nobody)

    def cut(
        self, cuts: tuple[int, ...], writer: dict[str, Tensor], reader: dict[str, Tensor]
    ) -> tuple[int, ...] | None:
        """The cuts of all groups, after those of the first ones. writer, reader: the unit that writes, reads each
        column of a buffer; -1: none, -2: several read it."""
        if len(cuts) == len(self.kernel.groups):
            return cuts
        group = self.kernel.groups[len(cuts)]
        for axis, size in enumerate(group.shape or (group.width,)):
            self.tried += 1
            innermost = len(group.shape) > 1 and axis == len(group.shape) - 1
            if size % self.count or self.tried > MOST_TRIED or (innermost and size // self.count < NEIGHBOURS):
                continue
            touched = self.touched(group, axis, writer, reader)
            if touched is not None and (found := self.cut((*cuts, axis), *touched)) is not None:
                return found
        return None

    def touched(
        self, group: Group, axis: int, writer: dict[str, Tensor], reader: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        writer, reader = dict(writer), dict(reader)
        for access, strides, writes in self.accesses(group):
            columns = of_units(access, strides, group.shape or (group.width,), axis, self.count)
            mine = torch.arange(self.count)[:, None].expand_as(columns)
            name = access.buffer
            if writes and not (alone(columns, writer[name], mine) and alone(columns, reader[name], mine)):
                return None
            if writes and not unique(columns, mine):
                return None
            if not writes and not alone(columns, writer[name], mine):
                return None
            known = writer if writes else reader
            marks = known[name].clone()
            several = not writes and not (unique(columns, mine) and alone(columns, marks, mine))
            marks[columns] = -2 if several else mine
            known[name] = marks
        return writer, reader

    def accesses(self, group: Group) -> Iterator[tuple[Access, Strides, bool]]:
        """The group's loads and stores of buffers that the kernel writes."""
        for node in group.nodes():
            if isinstance(node.payload, Access) and node.payload.buffer in self.owned:
                yield node.payload, moving(node.payload, group), False
        for store in group.stores:
            if store.target.buffer in self.owned:
                yield store.target, moving(store.target, group, store), True


def of_units(access: Access, strides: Strides, shape: Shape, axis: int, count: int) -> Tensor:
    """The columns that each unit touches, int64 [count, n]."""
    at = torch.tensor(access.column)
    for a, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        size = size if stride or a == axis else 1
        at = at.unsqueeze(-1) + torch.arange(size) * stride
        if a == axis:
            at = at.unflatten(-1, (count, -1)).movedim(-2, 0)
    return at.reshape(count, -1)


def alone(columns: Tensor, marks: Tensor, mine: Tensor) -> bool:
    """Whether what is marked in these columns is each unit's own."""
    there = marks[columns]
    return bool(((there == -1) | (there == mine)).all())


def unique(columns: Tensor, mine: Tensor) -> bool:
    """Whether no two units touch one column."""
    marks = torch.full((int(columns.max()) + 1,), -1)
    marks[columns] = mine
    return bool((marks[columns] == mine).all())
