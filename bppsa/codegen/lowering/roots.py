"""Stores that a lowering asks for, before `group.py` sorts them into groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bppsa.codegen.language.expr import Access, Expr, Shape, contiguous
from bppsa.codegen.language.ir import Reduce
from bppsa.codegen.lowering.row import RowSegment


@dataclass(frozen=True)
class Root:
    """A store with the width it covers, and its shape where that is several axes: the group it goes into is not known
    yet."""

    target: Access
    value: Expr
    width: int
    reduce: Reduce = Reduce.NONE
    shape: Shape = ()

    @property
    def extent(self) -> int | Shape:
        return self.shape or self.width


def root_of(target: Access, segment: RowSegment, reduce: Reduce = Reduce.NONE) -> Root:
    """The store of a segment, its columns one after the other."""
    target = replace(target, strides=contiguous(segment.shape))
    return Root(target, segment.expr, segment.width, reduce, segment.shape)
