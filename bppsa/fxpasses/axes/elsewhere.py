"""Ops on values whose rows are not in front, done to values that have them there: pointwise ones, folds and slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS
from bppsa.common.graph import call
from bppsa.fxpasses.axes.contract import features, merged, placed, refused, reshaped
from bppsa.fxpasses.axes.layout import Axis, AxisGroup, AxisLayout, unified

aten = torch.ops.aten

# op -> the position of the argument that names dimensions, and that of keepdim
FOLDS: dict[Any, tuple[int, int]] = {
    aten.sum.dim_IntList: (1, 2),
    aten.amax.default: (1, 2),
    aten.amin.default: (1, 2),
    aten.logsumexp.default: (1, 2),
}
ONE_DIM: dict[Any, int] = {
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten.slice.Tensor: 1,
    aten.select.int: 1,
}


def pointwise(graph: fx.Graph, node: fx.Node, given: dict[fx.Node, AxisLayout]) -> AxisLayout:
    """Operands are cut into the same axes, dimension by dimension, and get them in the same order."""
    rank, nodes = node.meta["val"].dim(), list(given)
    layouts = [replace(own, dims=((),) * (rank - len(own.dims)) + own.dims) for own in given.values()]
    for _ in layouts:  # a cut that a later operand asks for is one for the earlier ones too
        for i in range(1, len(layouts)):
            layouts[0], layouts[i] = reconciled(node, layouts[0], layouts[i])
    for i in range(1, len(layouts) - 1):
        layouts[i], layouts[i + 1] = reconciled(node, layouts[i], layouts[i + 1])
    dims: list[AxisGroup] = []
    places: list[list[Axis | None]] = [[] for _ in layouts]
    for d in range(rank):
        groups = [layout.dims[d] for layout in layouts]
        group: AxisGroup = max(groups, key=len)
        for own in groups:
            group = tuple(map(merged, group, own)) if own else group
        for at, own in zip(places, groups, strict=True):
            at += [own[i] if own else None for i, axis in enumerate(group) if axis.kind != "rows"]
        dims.append(group)
    rows = {place_of_rows(layout) for layout in layouts if layout.rows not in (None, 1)}
    if len(rows) > 1 or any(axis.kind == "repeated" for group in dims for axis in group):
        raise refused(node)
    values = {n: placed(graph, layout, at) for n, layout, at in zip(nodes, layouts, places, strict=True)}
    value = call(graph, node.target, *fx.node.map_arg(node.args, values.__getitem__), **node.kwargs)
    count = next(layout.rows for layout in layouts if layout.rows is not None)
    return AxisLayout(value, features(*dims), tuple(dims), count)


def reconciled(node: fx.Node, one: AxisLayout, other: AxisLayout) -> tuple[AxisLayout, AxisLayout]:
    for d in range(len(one.dims)):
        if one.dims[d] and other.dims[d]:
            found = unified(one, one.dims[d], other, other.dims[d])
            if found is None:
                raise refused(node)
            one, other = found[:2]
    return one, other


def place_of_rows(layout: AxisLayout) -> int:
    return next(d for d, group in enumerate(layout.dims) if any(axis.kind == "rows" for axis in group))


def folded(graph: fx.Graph, node: fx.Node, before: AxisLayout) -> AxisLayout | None:
    """None where the op works along the rows."""
    at, keep = FOLDS[node.target]
    rank = len(before.dims)
    away = {d % rank for d in node.args[at]}
    gone = [axis for d in away for axis in before.dims[d]]
    if not away or any(axis.kind == "rows" for axis in gone):
        return None
    positions = sorted(1 + before.axes.index(axis) for axis in gone)
    shaped = placed(graph, before, before.axes)
    value = call(graph, node.target, shaped, positions) if positions else shaped
    keepdim = len(node.args) > keep and node.args[keep]
    dims = [() if d in away else group for d, group in enumerate(before.dims) if keepdim or d not in away]
    return AxisLayout(value, tuple(axis for axis in before.axes if axis not in gone), tuple(dims), before.rows)


def along_one(graph: fx.Graph, node: fx.Node, before: AxisLayout) -> AxisLayout | None:
    """None where the dimension is not one axis of features."""
    dim = node.args[ONE_DIM[node.target]] % len(before.dims)
    if not before.dims[dim] and node.target is aten.select.int and before.rows != 1:  # of size 1
        return replace(before, dims=(*before.dims[:dim], *before.dims[dim + 1 :]))
    if len(before.dims[dim]) != 1 or before.dims[dim][0].kind != "own":
        return None
    (axis,) = before.dims[dim]
    position = before.axes.index(axis)
    shaped = placed(graph, before, before.axes)
    value = call(graph, node.target, shaped, 1 + position, *node.args[2:])
    if node.target is aten.select.int:
        left = [a for a in before.axes if a is not axis]
        return AxisLayout(value, tuple(left), (*before.dims[:dim], *before.dims[dim + 1 :]), before.rows)
    own = Axis(value.meta["val"].shape[1 + position])
    return replace(before, node=value).exchanged(axis, (own,) if own.size != 1 else ())


def solved(graph: fx.Graph, node: fx.Node, matrix: AxisLayout, before: AxisLayout) -> AxisLayout | None:
    """The layout of what one matrix for all rows gives for right sides that are columns, one for each row: a product
    with its inverse, which is made once. None for another form."""
    options = dict(zip(("left", "check_errors"), node.args[2:], strict=False)) | node.kwargs
    if matrix.rows is not None or len(before.dims) != 2 or before.in_front or not options.get("left", True):
        return None
    a = matrix.node
    if node.target is aten.linalg_solve_triangular.default:
        eye = call(graph, aten.eye.default, len(a.meta["val"]), dtype=a.meta["val"].dtype)
        inverse = call(graph, node.target, a, eye, **options)
    else:
        inverse = graph.call_function(aten.inverse.default, (a,))  # not run here: stand-ins may be singular
        inverse.meta["val"] = torch.empty_like(a.meta["val"])
    rows = placed(graph, before, before.axes)
    value = call(graph, aten.mm.default, rows, call(graph, aten.t.default, inverse))
    return replace(before, node=value)


def joined(graph: fx.Graph, node: fx.Node, given: Sequence[AxisLayout]) -> AxisLayout | None:
    """The layout of a cat. None where it works along the rows, or an operand has none."""
    dim = (node.args[1] if len(node.args) > 1 else 0) % node.meta["val"].dim()
    given = constants_with_rows(graph, node.args[0], given)
    apart = {rows_of(layout) for layout in given}
    odd = any(axis.kind == "repeated" for layout in given for group in layout.dims for axis in group)
    if odd or len(apart) > 1 or apart == {dim} or any(layout.rows is None for layout in given):
        return None
    others = [d for d in range(node.meta["val"].dim()) if d not in apart]
    values = []
    for arg, layout in zip(node.args[0], given, strict=True):
        shaped = placed(graph, layout, [axis for d in others for axis in layout.dims[d]])
        values.append(reshaped(graph, shaped, [-1, *(arg.meta["val"].shape[d] for d in others)]))
    value = call(graph, node.target, values, 1 + others.index(dim))
    found = [(Axis(size),) if size != 1 else () for size in node.meta["val"].shape]
    dims = tuple(given[0].dims[d] if d in apart else group for d, group in enumerate(found))
    return AxisLayout(value, features(*dims), dims, given[0].rows)


def constants_with_rows(graph: fx.Graph, args: Sequence[fx.Node], given: Sequence[AxisLayout]) -> list[AxisLayout]:
    """A tensor filled with one number, in the shape of an operand that has rows, is the same number in these rows."""
    like = next(((arg.meta["val"], layout) for arg, layout in zip(args, given, strict=True) if layout.rows), None)
    found = list(given)
    for i, arg in enumerate(args):
        number, value = filling(arg), arg.meta["val"]
        if like is None or number is None or given[i].rows is not None:
            continue
        if (value.shape, value.dtype) == (like[0].shape, like[0].dtype):
            found[i] = replace(like[1], node=call(graph, aten.full_like.default, like[1].node, number))
    return found


def filling(node: fx.Node) -> float | None:
    """The one number of which all of a constant is."""
    while node.target in (aten.unsqueeze.default, aten.view.default, aten.expand.default):
        node = node.args[0]
    return FILLS[node.target](node.args) if node.target in FILLS else None


def rows_of(layout: AxisLayout) -> int | None:
    """The dimension of the rows; None where it has size 1, as any may be that."""
    return None if layout.rows in (None, 1) else place_of_rows(layout)
