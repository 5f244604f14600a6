"""The kernel language: what one sweep over time does at each point, as data.

A `Kernel` runs over T steps and B rows. A step is a list of `Group`s, run in order. A group covers `width` columns j;
for every row b and column j it evaluates expressions made of loads, constants, pointwise ops and dot products, and
only then commits its stores. The columns may be several axes, row-major; an access then moves along each by a stride
of its own. `interpret.py` is the definition of all this; the printers must agree with it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from bppsa.codegen.language.expr import Access, Dot, Expr, Shape, topological


class Kind(enum.Enum):
    """What a buffer's rows stand for, and so its shape; n is the buffer's width."""

    STREAM = "stream"  # [T, B, n]: one row a step
    STATE = "state"  # [T+1, B, n]: rows between steps; `Access.after` tells which side of the step
    RUNNING = "running"  # [B, n]: a load reads what the previous step stored; holds the final value at the end
    SCRATCH = "scratch"  # [B, n]: lives within a step; the printers own its storage
    VECTOR = "vector"  # [n]: the same for every row and step
    WEIGHT = "weight"  # [K, n]: right operand of dot products
    COLUMN_SUM = "column_sum"  # [n]: the sum over all rows and steps of what is stored into it

    __hash__ = object.__hash__  # Enum's own is a function of Python's, and a call looks up some ten


@dataclass(frozen=True)
class Buffer:
    """A tensor the kernel is given, or scratch of its own; `kind` says its shape."""

    name: str
    kind: Kind
    width: int
    depth: int = 1  # K, of a WEIGHT


class Reduce(enum.Enum):
    """How a store folds its values. COLUMNS goes with a COLUMN_SUM target, ROWS and MAX with a SCRATCH.

    A target with strides keeps the axes along which it moves, and the fold runs over the others; without strides it
    runs over all columns, and one number is left.
    """

    NONE = "none"
    ROWS = "rows"  # the sum over columns of a row
    MAX = "max"  # the largest of a row, NaN if there is one
    COLUMNS = "columns"  # the sum over all rows and steps, and over axes along which the target does not move


FOLDS = frozenset({Reduce.ROWS, Reduce.MAX})  # of columns of a row


@dataclass(frozen=True)
class Store:
    """`value`, computed for every column of the group, goes to `target` when all loads of the group are done."""

    target: Access
    value: Expr
    reduce: Reduce = Reduce.NONE


@dataclass(frozen=True)
class Group:
    """Stores over columns 0 to `width`, computed together. shape: of several axes, `width` columns in all; () for one
    along which every access moves by one or not at all."""

    width: int
    stores: tuple[Store, ...]
    shape: Shape = ()

    def nodes(self) -> tuple[Expr, ...]:
        """Every expression of the group once, operands before users."""
        return topological(store.value for store in self.stores)

    @property
    def dots(self) -> tuple[Dot, ...]:
        return tuple(node.payload for node in self.nodes() if isinstance(node.payload, Dot))


@dataclass(frozen=True)
class Kernel:
    """One sweep. `along`: in the recurrence's own direction of time (a forward pass), else against it (a backward
    pass).

    With the run-time number `columns` so many rows of every RUNNING and SCRATCH buffer share one row of all others: the
    columns of a matrix that one sample's steps are applied to. Then nothing but RUNNING and SCRATCH may be stored.

    With the run-time flag `reverse` the recurrence itself runs from T-1 to 0; STATE rows before and after a step t are
    then t+1 and t, otherwise t and t+1.
    """

    name: str
    buffers: tuple[Buffer, ...]
    groups: tuple[Group, ...]
    along: bool = True

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def with_groups(self, groups: Iterable[Group], also: Iterable[str] = ()) -> Kernel:
        """The kernel with other groups, and with the buffers that these touch, or that are named in `also`."""
        groups = tuple(groups)
        used = accessed(groups) | {*also}
        return replace(self, groups=groups, buffers=tuple(b for b in self.buffers if b.name in used))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What each buffer is, by its name."""
        return {b.name: b.kind for b in self.buffers}

    @cached_property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers a caller passes, in order."""
        return tuple(b for b in self.buffers if b.kind is not Kind.SCRATCH)


def accessed(groups: Iterable[Group]) -> set[str]:
    """The names of all buffers that `groups` touch."""
    groups = tuple(groups)
    return {store.target.buffer for group in groups for store in group.stores} | read_by(groups)


def read_by(groups: Iterable[Group]) -> set[str]:
    """The names of the buffers that `groups` load from or multiply with."""
    found = set()
    for payload in (node.payload for group in groups for node in group.nodes()):
        if isinstance(payload, Dot):
            found |= {payload.source.buffer, payload.weight}
        elif isinstance(payload, Access):
            found.add(payload.buffer)
    return found
