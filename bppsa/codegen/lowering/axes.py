"""A segment seen along several axes, and what views do to it: they rewrite how its loads move, and cost nothing.

The columns of a value [B, n_1, n_2, ...] are numbered row-major, so a reshape is nothing at all. A segment's `shape`
cuts its columns into axes along each of which every load moves by a stride of its own; () where they are one axis, and
every load moves by one or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from bppsa.codegen.language.expr import Access, Expr, Shape, Strides, rewrite
from bppsa.codegen.lowering.row import RowSegment

StridesMove = Callable[
    [Strides], tuple[Strides, int]
]  # strides before -> after, and by how many columns all begins later


def shape_of(segment: RowSegment) -> Shape:
    return segment.shape or (segment.width,)


def is_product(segment: RowSegment) -> bool:
    """Whether it holds a product with a weight, which knows but one axis."""
    return segment.expr.multiplies


def moved(expr: Expr, move: StridesMove) -> Expr:
    """The expression with the strides of every load changed."""

    def there(node: Expr) -> Expr | None:
        payload = node.payload
        if not isinstance(payload, Access) or payload.broadcast:
            return None
        strides, later = move(payload.strides or (1,))
        some = any(strides)
        column = payload.column + later
        access = replace(payload, column=column, broadcast=not some, strides=strides if some else ())
        return Expr(node.op, payload=access)

    return rewrite(expr, there)


def subdivided(one: Shape, other: Shape) -> Shape | None:
    """The `refinement` of two shapes; None where one of them has an axis of size 1."""
    return None if 1 in one or 1 in other else refinement(one, other)


def refinement(one: Shape, other: Shape) -> Shape | None:
    """The fewest axes of which those of both shapes are products; None where there are none (6 x 4 and 8 x 3)."""
    left, right, found = [n for n in one if n != 1], [n for n in other if n != 1], []
    while left and right:
        a, b = left.pop(), right.pop()
        least = min(a, b)
        if max(a, b) % least:
            return None
        found.append(least)
        left += [a // least] * (a != least)
        right += [b // least] * (b != least)
    return tuple(reversed(found))


def refined(segment: RowSegment, shape: Shape) -> RowSegment | None:
    """The same columns, cut at least as fine as `shape`; None where no axes fit both."""
    fine = refinement(shape_of(segment), shape)
    if fine is None:
        return None
    if fine == segment.shape and () not in segment.expr.moves:
        return segment
    old = [n for n in shape_of(segment) if n != 1]
    parts = divided(fine, old)

    def move(strides: Strides) -> tuple[Strides, int]:
        kept = [s for s, n in zip(strides, shape_of(segment), strict=True) if n != 1]
        return tuple(
            stride * prod(part[i + 1 :]) for stride, part in zip(kept, parts, strict=True) for i in range(len(part))
        ), 0

    return RowSegment(segment.width, moved(segment.expr, move), fine)


def divided(fine: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The axes `fine` by which of `sizes` they are factors of; no axis for a size of 1."""
    found, rest = [], list(fine)
    for size in sizes:
        part: list[int] = []
        while prod(part) != size:
            part.append(rest.pop(0))
        found.append(tuple(part))
    return found


def rearranged(segment: RowSegment, shape: Shape, move: StridesMove) -> RowSegment:
    """The segment with axes of new sizes: element j of `shape` is where `move` takes the loads."""
    return coalesced(RowSegment(prod(shape), moved(segment.expr, move), shape))


def coalesced(segment: RowSegment) -> RowSegment:
    """The segment with as few axes as there can be."""
    own = segment.expr.moves
    if not own:
        return RowSegment(segment.width, segment.expr)
    groups: list[list[int]] = []
    for axis, size in enumerate(segment.shape):
        if size == 1:
            continue
        last = groups[-1][-1] if groups else None
        if last is not None and all(s[last] == s[axis] * size for s in own):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    shape = tuple(prod(segment.shape[a] for a in group) for group in groups)
    if len(shape) == len(segment.shape) and () not in own:
        expr = segment.expr
    else:
        expr = moved(segment.expr, lambda strides: (tuple(strides[group[-1]] for group in groups), 0))
    if len(shape) <= 1 and expr.moves <= {(1,)}:
        return RowSegment(segment.width, plain(expr))
    return RowSegment(segment.width, expr, shape)


def plain(expr: Expr) -> Expr:
    """The expression of one axis, along which every load moves by one or not at all."""

    def there(node: Expr) -> Expr | None:
        payload = node.payload
        return Expr(node.op, payload=replace(payload, strides=())) if isinstance(payload, Access) else None

    return rewrite(expr, there)
