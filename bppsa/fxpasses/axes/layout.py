"""Where a tensor's dimensions keep the rows of the batch, and where the features: as products of axes.

einsum and matmul put the rows second ([heads, B, K]) or merge them with heads ([B * heads, D, N]). An axis is followed
by where it comes from, never by its size: B may equal the number of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import fx

from bppsa.common.chain import ALONG_BATCH
from bppsa.errors import Unsupported


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a value. kind: "rows" of the batch, "own", or "repeated": the value is the same all along it."""

    size: int
    kind: str = "own"


AxisGroup = tuple[Axis, ...]  # of which a dimension is the product, the last innermost


@dataclass(frozen=True)
class AxisLayout:
    """A tensor's dimensions in terms of axes. node: what holds the numbers, [B, ...] or a parameter, of which `axes`
    are the features, row-major. rows: how many, None of a parameter. An axis of size 1 is in no dimension, also where
    it is the batch: any one of size 1 may be that."""

    node: fx.Node
    axes: AxisGroup
    dims: tuple[AxisGroup, ...]
    rows: int | None

    @property
    def in_front(self) -> bool:
        """Whether the rows are a dimension of their own, the first."""
        return len(self.dims) > 0 and [axis.kind for axis in self.dims[0]] == ["rows"] * (self.rows != 1)

    def split(self, axis: Axis, sizes: Sequence[int]) -> AxisLayout:
        return self.exchanged(axis, [Axis(size, axis.kind) for size in sizes])

    def exchanged(self, axis: Axis, by: Sequence[Axis]) -> AxisLayout:
        def change(group: AxisGroup) -> AxisGroup:
            return tuple(new for a in group for new in (by if a is axis else (a,)))

        return replace(self, axes=change(self.axes), dims=tuple(map(change, self.dims)))

    def viewed(self, sizes: Sequence[int]) -> AxisLayout | None:
        """The layout with dimensions of these sizes; None where they would take the rows apart."""
        rest = [axis for group in self.dims for axis in group]
        result, found = self, list[AxisGroup]()
        for size in sizes:
            group: list[Axis] = []
            while prod(a.size for a in group) != size:
                need = size // prod(a.size for a in group)
                axis = rest.pop(0)
                if axis.size > need and axis.size % need == 0 and axis.kind != "rows":
                    result, (axis, second) = _halves(result, axis, need)
                    rest.insert(0, second)
                elif need % axis.size:
                    return None
                group.append(axis)
            found.append(tuple(group))
        return replace(result, dims=tuple(found))

    def permuted(self, order: Sequence[int]) -> AxisLayout:
        return replace(self, dims=tuple(self.dims[d] for d in order))


def _flat(dims: Sequence[AxisGroup]) -> list[Axis]:
    return [axis for group in dims for axis in group]


def layout_of(node: fx.Node, rows: bool) -> AxisLayout:
    """The layout of a value with its rows in front, or of a parameter. Raises `Unsupported` for one number of all
    rows."""
    shape = node.meta["val"].shape
    if rows and not shape:
        raise Unsupported(replace(ALONG_BATCH, op=str(node.target)))
    features = tuple(() if size == 1 else (Axis(size),) for size in (shape[1:] if rows else shape))
    first: AxisGroup = (Axis(shape[0], "rows"),) if rows and shape[0] != 1 else ()
    axes = tuple(axis for group in features for axis in group)
    return AxisLayout(node, axes, (first, *features) if rows else features, shape[0] if rows else None)


def unified(
    one: AxisLayout, a: AxisGroup, other: AxisLayout, b: AxisGroup
) -> tuple[AxisLayout, AxisLayout, AxisGroup, AxisGroup] | None:
    """Both layouts with the axes of a group in each cut alike; the rows meet rows, or what is repeated along them."""
    left, right, done_a, done_b = list(a), list(b), list[Axis](), list[Axis]()
    while left and right:
        x, y = left.pop(0), right.pop(0)
        least = min(x.size, y.size)
        if max(x.size, y.size) % least or (x.size != y.size and "rows" in (x.kind, y.kind)):
            return None
        if x.size != y.size:
            large, small = (x, y) if x.size > y.size else (y, x)
            layout, parts = _halves(one if large is x else other, large, small.size)
            if large is x:
                one, x = layout, parts[0]
                left.insert(0, parts[1])
            else:
                other, y = layout, parts[0]
                right.insert(0, parts[1])
        if "rows" in (x.kind, y.kind) and "own" in (x.kind, y.kind):
            return None
        done_a.append(x)
        done_b.append(y)
    return None if left or right else (one, other, tuple(done_a), tuple(done_b))


def _halves(layout: AxisLayout, axis: Axis, first: int) -> tuple[AxisLayout, AxisGroup]:
    before = next(i for i, a in enumerate(_flat(layout.dims)) if a is axis)
    layout = layout.split(axis, (first, axis.size // first))
    return layout, tuple(_flat(layout.dims)[before : before + 2])
