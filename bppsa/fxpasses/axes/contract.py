"""Products of matrices for each row: bmm and mm in terms of layouts, so that the rows come out in front.

With a weight they are an mm; otherwise every pair of numbers is multiplied and the sums are taken, whose kernel has one
loop for both and stores no product.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import fx

from bppsa.common.graph import call
from bppsa.errors import Unsupported
from bppsa.fxpasses.axes.layout import Axis, AxisGroup, AxisLayout, unified

aten = torch.ops.aten
MOST_BY_STEP = 1024  # numbers of a matrix without rows that is given anew in each step


def contracted(
    graph: fx.Graph, node: fx.Node, left: AxisLayout, right: AxisLayout, by_step: Container[fx.Node]
) -> AxisLayout:
    """The layout of left @ right, mm or bmm, whose nodes are put where the graph is being inserted to. by_step: values
    without rows that are others in each step, so no weights."""
    batched = node.target is aten.bmm.default
    batch = unified(left, left.dims[0], right, right.dims[0]) if batched else (left, right, (), ())
    if batch is None:
        raise refused(node)
    left, right, batch_left, batch_right = batch
    inner = unified(left, left.dims[-1], right, right.dims[-2])
    if inner is None or "rows" in [axis.kind for axis in inner[2] + inner[3]]:
        raise refused(node)
    left, right, inner_left, inner_right = inner
    outer = left.dims[-2], right.dims[-1]
    pairs = list(zip(batch_left, batch_right, strict=True))
    batch_axes = tuple(merged(a, b) for a, b in pairs)
    kinds = [axis.kind for axis in (*batch_axes, *outer[0], *outer[1])]
    rows = right.rows if left.rows is None else left.rows
    if kinds.count("rows") != (rows != 1) or "repeated" in kinds:
        raise refused(node)
    dims = (*((batch_axes,) if batched else ()), *outer)
    product = None
    if left.node in by_step or right.node in by_step:
        check_small(left, right, by_step)
    else:
        product = by_weight(graph, left, right, batch_axes, outer, (inner_left, inner_right))
    if product is None:
        own = [pair for pair, axis in zip(pairs, batch_axes, strict=True) if axis.kind == "own"]
        product = by_pairs(graph, left, right, own, outer, (inner_left, inner_right))
    return AxisLayout(product, features(batch_axes, *outer), dims, rows)


def check_small(left: AxisLayout, right: AxisLayout, by_step: Container[fx.Node]) -> None:
    """Raises `Unsupported` where a matrix that each step has, which is written down for every row, is a large one."""
    for layout in (left, right):
        if layout.node in by_step and total(layout.axes) > MOST_BY_STEP:
            what = f"a weight {list(layout.node.meta['val'].shape)} that is another one in each step"
            raise Unsupported(what, mend=f"with at most {MOST_BY_STEP} numbers it runs in the kernel")


def merged(a: Axis, b: Axis) -> Axis:
    """The one of both operands' axes that is not repeated."""
    return b if a.kind == "repeated" else a


def features(*groups: AxisGroup) -> AxisGroup:
    return tuple(axis for group in groups for axis in group if axis.kind != "rows")


def by_weight(
    graph: fx.Graph,
    left: AxisLayout,
    right: AxisLayout,
    batch: AxisGroup,
    outer: tuple[AxisGroup, AxisGroup],
    inner: tuple[AxisGroup, AxisGroup],
) -> fx.Node | None:
    """The contraction as one mm, where each row of one operand meets all of the other, which has no rows."""
    for rows, weight, own, other, (k, depth) in (
        (left, right, outer[0], outer[1], inner),
        (right, left, outer[1], outer[0], inner[::-1]),
    ):
        alone = rows.rows is not None and weight.rows is None and not batch and not features(own)
        plain = all(axis.kind == "own" for axis in (*k, *depth, *other))
        if alone and plain and k and other:
            value = reshaped(graph, placed(graph, rows, k), [-1, total(k)])
            return call(graph, aten.mm.default, value, matrix(graph, weight, depth, other))
    return None


def by_pairs(
    graph: fx.Graph,
    left: AxisLayout,
    right: AxisLayout,
    batch: Sequence[tuple[Axis, Axis]],
    outer: tuple[AxisGroup, AxisGroup],
    inner: tuple[AxisGroup, AxisGroup],
) -> fx.Node:
    """The contraction as sums of the products of all pairs of numbers that meet."""
    places: list[tuple[Axis | None, Axis | None]] = [*batch, *((axis, None) for axis in features(outer[0]))]
    start = 1 + len(places)
    places += [*zip(*inner, strict=True), *((None, axis) for axis in features(outer[1]))]
    factors = placed(graph, left, [a for a, _ in places]), placed(graph, right, [b for _, b in places])
    product = call(graph, aten.mul.Tensor, *factors)
    summed = list(range(start, start + len(inner[0])))
    return call(graph, aten.sum.dim_IntList, product, summed) if summed else product


def matrix(graph: fx.Graph, weight: AxisLayout, depth: AxisGroup, width: AxisGroup) -> fx.Node:
    """A parameter as [K, N]: itself, or its transpose, where it is that."""
    whole = weight.node.meta["val"].shape
    if weight.axes == (*depth, *width) and whole == (total(depth), total(width)):
        return weight.node
    if weight.axes == (*width, *depth) and whole == (total(width), total(depth)):
        return call(graph, aten.t.default, weight.node)
    return reshaped(graph, placed(graph, weight, [*depth, *width]), [total(depth), total(width)])


def total(axes: AxisGroup) -> int:
    return torch.Size(axis.size for axis in axes).numel()


def placed(graph: fx.Graph, layout: AxisLayout, places: Sequence[Axis | None]) -> fx.Node:
    """The numbers with an axis at each place, of size 1 where the operand has none there, behind the rows if it has
    any."""
    lead = [] if layout.rows is None else [-1]
    at = [axis if axis in layout.axes else None for axis in places]
    node = reshaped(graph, layout.node, [*lead, *(axis.size for axis in layout.axes)])
    own = [layout.axes.index(axis) for axis in at if axis is not None]
    assert sorted(own) == list(range(len(layout.axes))), "every axis has a place"
    if own != sorted(own):
        node = call(graph, aten.permute.default, node, [*range(len(lead)), *(len(lead) + a for a in own)])
    return reshaped(graph, node, [*lead, *(1 if axis is None else axis.size for axis in at)])


def reshaped(graph: fx.Graph, node: fx.Node, sizes: Sequence[int]) -> fx.Node:
    value = node.meta["val"]
    if tuple(value.shape[bool(sizes and sizes[0] == -1) :]) == tuple(n for n in sizes if n != -1):
        return node
    if not value.is_contiguous():
        node = call(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
    return call(graph, aten.view.default, node, list(sizes))


def refused(node: fx.Node) -> Unsupported:
    shapes = " and ".join(str(list(arg.meta["val"].shape)) for arg in node.all_input_nodes)
    what = f"meets {shapes} across the batch, or a batch that is no row's own"
    return Unsupported(what, op=str(node.target), mend="pass per-row tensors in xs or in the carry")
