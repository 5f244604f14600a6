"""Ops on values of several axes, lowered: views change how loads move, folds go to scratch, and so does what no axes
fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from torch import fx

from bppsa.codegen.language.expr import EXPENSIVE, Access, Expr, Shape, Strides, contiguous, topological
from bppsa.codegen.language.ir import Reduce
from bppsa.codegen.lowering.axes import coalesced, divided, is_product, moved, rearranged, refined, refinement
from bppsa.codegen.lowering.roots import Root
from bppsa.codegen.lowering.row import Row, RowSegment, leaf, zip_with

if TYPE_CHECKING:
    from bppsa.codegen.lowering.lower import Lowering


def dims(node: fx.Node, rank: int | None = None) -> Shape:
    """The sizes of a value's features. rank: that of a result to which a parameter, which has no rows, is broadcast."""
    shape = tuple(node.meta["val"].shape)
    if rank is None or len(shape) == rank:
        return shape[1:]
    return (1,) * (rank - 1 - len(shape)) + shape


def is_wide(node: fx.Node) -> bool:
    return bool(node.meta["val"].dim() > 2)


def whole(lowering: Lowering, row: Row) -> RowSegment:
    """The row as one segment without products, by way of scratch where it is not one."""
    if len(row.segments) == 1 and not is_product(row.segments[0]):
        return row.segments[0]
    return in_scratch(lowering, row)


def in_scratch(lowering: Lowering, row: Row) -> RowSegment:
    return leaf(lowering.in_scratch(row), row.width).segments[0]


def along(lowering: Lowering, row: Row, sizes: Shape) -> RowSegment:
    """The row as one segment cut at least as fine as `sizes`."""
    segment = whole(lowering, row)
    if segment.expr.uniform:
        return RowSegment(segment.width, segment.expr, tuple(n for n in sizes if n != 1))
    found = refined(segment, sizes) or refined(in_scratch(lowering, row), sizes)
    assert found is not None, "columns that stand one after the other fit any axes"
    return found


def by_dim(segment: RowSegment, sizes: Shape) -> list[list[int]]:
    """The axes of a segment cut as fine as `sizes`, for each of these."""
    at, found = 0, []
    for part in divided(segment.shape, sizes):
        found.append(list(range(at, at + len(part))))
        at += len(part)
    return found


def picked(segment: RowSegment, axes: Sequence[int]) -> RowSegment:
    """The segment with its axes in this order, and those not named left out at their beginning."""
    shape = tuple(segment.shape[a] for a in axes)
    return rearranged(segment, shape, lambda strides: (tuple(strides[a] for a in axes), 0))


def permute(lowering: Lowering, node: fx.Node) -> Row:
    order = [d % node.meta["val"].dim() for d in node.args[1]]
    return permuted(lowering, node, order)


def transpose(lowering: Lowering, node: fx.Node) -> Row:
    order = list(range(node.meta["val"].dim()))
    a, b = node.args[1:]
    order[a], order[b] = order[b], order[a]
    return permuted(lowering, node, order)


def permuted(lowering: Lowering, node: fx.Node, order: Sequence[int]) -> Row:
    source = node.args[0]
    segment = along(lowering, lowering.row(source), dims(source))
    axes = by_dim(segment, dims(source))
    return Row((picked(segment, [a for d in order[1:] for a in axes[d - 1]]),))


def flip(lowering: Lowering, node: fx.Node) -> Row:
    source = node.args[0]
    sizes, turned = dims(source), folded(node)
    segment = along(lowering, lowering.row(source), sizes)
    axes = {a for d, group in enumerate(by_dim(segment, sizes)) if turned[d] for a in group}

    def move(strides: Strides) -> tuple[Strides, int]:
        later = sum(strides[a] * (segment.shape[a] - 1) for a in axes)
        return tuple(-s if a in axes else s for a, s in enumerate(strides)), later

    return Row((rearranged(segment, segment.shape, move),))


def select(lowering: Lowering, node: fx.Node) -> Row:
    source, dim, index = node.args
    sizes = dims(source)
    segment = along(lowering, lowering.row(source), sizes)
    axes, at = by_dim(segment, sizes), dim % (len(sizes) + 1) - 1
    own, rest = axes[at], [a for d, group in enumerate(axes) if d != at for a in group]
    place = digits(index % sizes[at], [segment.shape[a] for a in own])

    def move(strides: Strides) -> tuple[Strides, int]:
        later = sum(strides[a] * digit for a, digit in zip(own, place, strict=True))
        return tuple(strides[a] for a in rest), later

    return Row((rearranged(segment, tuple(segment.shape[a] for a in rest), move),))


def digits(number: int, sizes: Sequence[int]) -> list[int]:
    """The digits of a row-major index."""
    return [number // stride % size for size, stride in zip(sizes, contiguous(tuple(sizes)), strict=True)]


def take(lowering: Lowering, node: fx.Node) -> Row:
    """A slice along any dimension."""
    source, dim, *given = node.args
    sizes = dims(source)
    at = dim % (len(sizes) + 1) - 1
    begin, stop, step = slice(*given, *(0, None, 1)[len(given) :]).indices(sizes[at])
    row, inner = lowering.row(source), prod(sizes[at + 1 :])
    if dims(node) == sizes:
        return row
    if row.is_one_axis and step == 1 and prod(sizes[:at]) == 1:
        part = row.columns(begin * inner, stop * inner)
        return lowering.one_column(part.segments[0]) if part.width == 1 < row.width else part
    segment = along(lowering, row, sizes)
    if len(by_dim(segment, sizes)[at]) > 1:
        segment = along(lowering, Row((in_scratch(lowering, row),)), sizes)
    (axis,), count = by_dim(segment, sizes)[at], len(range(begin, stop, step))
    shape = tuple(count if a == axis else n for a, n in enumerate(segment.shape))

    def move(strides: Strides) -> tuple[Strides, int]:
        return tuple(s * step if a == axis else s for a, s in enumerate(strides)), strides[axis] * begin

    return Row((rearranged(segment, shape, move),))


def interleaves(node: fx.Node) -> bool:
    """Whether the pieces of a cat do not stand one behind the other."""
    dim = node.args[1] % node.meta["val"].dim() if len(node.args) > 1 else 0
    return prod(dims(node)[: dim - 1]) != 1


def concatenate(lowering: Lowering, node: fx.Node) -> Row:
    """Each piece is stored at its place in scratch."""
    pieces, dim = node.args
    sizes, dim = dims(node), dim % node.meta["val"].dim() - 1
    access, at = Access(lowering.new_scratch(prod(sizes))), 0
    for piece in pieces:
        own = dims(piece)
        segment = along(lowering, lowering.row(piece), own)
        strides = tuple(
            stride * inner
            for group, stride in zip(by_dim(segment, own), contiguous(sizes), strict=True)
            for inner in contiguous(tuple(segment.shape[a] for a in group))
        )
        column = at * contiguous(sizes)[dim]
        some = any(strides)
        target = Access(access.buffer, column, strides=strides)
        lowering.roots.append(
            Root(target, segment.expr, segment.width, shape=segment.shape)
            if some
            else Root(Access(access.buffer, column), segment.expr, 1)
        )
        at += own[dim]
    return leaf(access, prod(sizes))


def expand(lowering: Lowering, node: fx.Node) -> Row:
    source, sizes = node.args[0], dims(node)
    return Row((coalesced(broadcast(lowering, lowering.row(source), dims(source, len(sizes) + 1), sizes)),))


def broadcast(lowering: Lowering, row: Row, own: Shape, sizes: Shape) -> RowSegment:
    """The row, of a value of sizes `own`, repeated to `sizes` and cut at least as fine."""
    segment = whole(lowering, row)
    grows = own != sizes and not segment.expr.uniform
    if grows and any(node.op in EXPENSIVE for node in topological((segment.expr,))):
        row = Row((in_scratch(lowering, row),))
    segment = along(lowering, row, own)
    if segment.expr.uniform:
        return RowSegment(prod(sizes), segment.expr, tuple(n for n in sizes if n != 1))
    axes = by_dim(segment, own)
    grown = [(size, axes[d], own[d] == 1) for d, size in enumerate(sizes)]
    shape = tuple(n for size, group, new in grown for n in ([size] if new else [segment.shape[a] for a in group]))

    def move(strides: Strides) -> tuple[Strides, int]:
        return tuple(s for _, group, new in grown for s in ([0] if new else [strides[a] for a in group])), 0

    return rearrangement(segment, shape, move)


def rearrangement(segment: RowSegment, shape: Shape, move: Callable[[Strides], tuple[Strides, int]]) -> RowSegment:
    """Does what `rearranged` does, with the axes as they are but for those of size 1."""
    kept = [a for a, n in enumerate(shape) if n != 1]
    stays = shape == segment.shape and len(kept) == len(shape) and () not in segment.expr.moves
    if shape and stays and move(contiguous(shape)) == (contiguous(shape), 0):
        return segment

    def own(strides: Strides) -> tuple[Strides, int]:
        new, later = move(strides)
        return tuple(new[a] for a in kept), later

    return RowSegment(prod(shape), moved(segment.expr, own), tuple(shape[a] for a in kept))


def pointwise(
    lowering: Lowering, build: Callable[..., Expr | None], nodes: Sequence[fx.Node], node: fx.Node
) -> Row | None:
    sizes = dims(node)
    return combined(lowering, build, [(lowering.row(n), dims(n, len(sizes) + 1)) for n in nodes], sizes)


def combined(
    lowering: Lowering, build: Callable[..., Expr | None], given: Sequence[tuple[Row, Shape]], sizes: Shape
) -> Row | None:
    """`build` over rows of values of such sizes, each repeated to the sizes of the result."""
    if all(row.is_one_axis and row.width in (1, prod(sizes)) for row, _ in given):
        return zip_with(build, [row for row, _ in given])
    segments = [broadcast(lowering, row, own, sizes) for row, own in given]
    shape = common(segments)
    if shape is None:
        segments = [broadcast(lowering, Row((in_scratch(lowering, row),)), own, sizes) for row, own in given]
        shape = common(segments)
    assert shape is not None, "columns that stand one after the other fit any axes"
    fine = [refined(s, shape) for s in segments]
    built = build(*(s.expr for s in fine if s is not None))
    return None if built is None else Row((coalesced(RowSegment(prod(sizes), built, shape)),))


def common(segments: Sequence[RowSegment]) -> Shape | None:
    shape: Shape | None = ()
    for segment in segments:
        shape = segment.shape if shape == () else refinement(shape, segment.shape) if shape is not None else None
    return shape


def folded(node: fx.Node, position: int = 1) -> list[bool]:
    """Along which of the operand's dimensions, but the rows, the op works."""
    rank, given = node.args[0].meta["val"].dim(), node.args[position]
    given = [given] if isinstance(given, int) else given or range(1, rank)
    summed = {d % rank for d in given}
    return [d in summed for d in range(1, rank)]


def reduced(lowering: Lowering, row: Row, sizes: Shape, away: Sequence[bool], reduce: Reduce) -> Row:
    """A row of such sizes folded along some of them, into scratch: to one number where it is of one axis and nothing is
    kept."""
    if row.is_one_axis and all(own or n == 1 for own, n in zip(away, sizes, strict=True)):
        return lowering.sum(row) if reduce is Reduce.ROWS else lowering.largest(row)
    segment = along(lowering, row, sizes)
    kept = [a for d, group in enumerate(by_dim(segment, sizes)) if not away[d] for a in group]
    width = prod(segment.shape[a] for a in kept)
    if width == segment.width:
        return row
    own = dict(zip(kept, contiguous(tuple(segment.shape[a] for a in kept)), strict=True))
    strides = tuple(own.get(a, 0) for a in range(len(segment.shape)))
    access = Access(lowering.new_scratch(width))
    target = Access(access.buffer, broadcast=not own, strides=strides if own else ())
    lowering.roots.append(Root(target, segment.expr, segment.width, reduce, segment.shape))
    return leaf(access, width)
