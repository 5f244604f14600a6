"""A value of one step, as a row of segments: each a range of columns and the expression for column j of it.

Slicing and concatenation of features cost nothing this way: they only rearrange segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bppsa.codegen.language.expr import Access, Dot, Expr, Op, Shape, rewrite


@dataclass(frozen=True)
class RowSegment:
    """Neighbouring columns that one expression computes. shape: of several axes, see `axes.py`."""

    width: int
    expr: Expr
    shape: Shape = ()


@dataclass(frozen=True)
class Row:
    """A value `[B, n]`, or `[B, n_1, n_2, ...]` row-major. A row of width 1 is uniform: its expression does not depend
    on j, so it may be used at any width."""

    segments: tuple[RowSegment, ...]

    @property
    def width(self) -> int:
        return sum(s.width for s in self.segments)

    @property
    def is_one_axis(self) -> bool:
        """Whether its columns are one axis."""
        return not any(s.shape for s in self.segments)

    @property
    def in_memory(self) -> Access | None:
        """The place at which it stands in memory as one range of columns; None where it does not, as of one number
        repeated."""
        if len(self.segments) > 1 or not self.is_one_axis:
            return None
        access = self.segments[0].expr.payload
        return access if isinstance(access, Access) and (self.width == 1 or not access.broadcast) else None

    def columns(self, start: int, end: int) -> Row:
        """Columns [start, end)."""
        found, at = [], 0
        for s in self.segments:
            low, high = max(start, at), min(end, at + s.width)
            if low < high:
                found.append(RowSegment(high - low, shift(s.expr, low - at)))
            at += s.width
        return Row(tuple(found))


def leaf(access: Access, width: int) -> Row:
    return Row((RowSegment(width, Expr(Op.LOAD, payload=replace(access, broadcast=width == 1))),))


def concatenate(rows: Iterable[Row]) -> Row:
    return Row(tuple(s for row in rows for s in row.segments if s.width))


def zip_with(build: Callable[..., Expr | None], rows: Sequence[Row]) -> Row | None:
    """Apply `build` column by column; rows of width 1 meet every column. None where `build` gives none."""
    width = max(row.width for row in rows)
    cuts = {width}
    for row in rows:
        at = 0
        for s in row.segments if row.width == width else ():
            at += s.width
            cuts.add(at)
    segments, start = [], 0
    for end in sorted(cuts):
        parts = [row.columns(start, end) if row.width == width else row for row in rows]
        built = build(*(part.segments[0].expr for part in parts))
        if built is None:
            return None
        segments.append(RowSegment(end - start, built))
        start = end
    return Row(tuple(segments))


def shift(expr: Expr, columns: int) -> Expr:
    """The expression for column j + `columns`."""

    def moved(node: Expr) -> Expr | None:
        payload = node.payload
        if isinstance(payload, Dot) or (isinstance(payload, Access) and not payload.broadcast):
            return Expr(node.op, payload=replace(payload, column=payload.column + columns))
        return None

    return rewrite(expr, moved) if columns and not expr.uniform else expr
