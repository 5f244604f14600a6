"""Rewrite a recorded cell so that every value has the rows of the batch as its first dimension, and no other.

Where a view moves the rows, or merges them with features, the value is only known by its layout until an op brings them
back; products in between are written in terms of values with rows in front. Sizes in views no longer name the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import is_pointwise
from bppsa.common.graph import call
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.axes import elsewhere
from bppsa.fxpasses.axes.contract import contracted, placed, refused, reshaped
from bppsa.fxpasses.axes.layout import Axis, AxisGroup, AxisLayout, layout_of

aten = torch.ops.aten


def with_rows_first(
    graph: fx.Graph,
    carries: Sequence[fx.Node],
    xs: Sequence[fx.Node],
    waiting: Collection[fx.Node],
    refused: dict[fx.Node, Reason] | None,
) -> dict[fx.Node, fx.Node]:
    """Changes the graph; gives what stands for what. carries, xs: the placeholders that have rows. waiting: the nodes
    that have to be rewritten; others stay as they were where they cannot be. refused: takes those that have to and
    cannot, with their reasons; without it the first raises `Unsupported`."""
    return RowsFirst(graph, carries, xs, waiting, refused).run()


class RowsFirst:
    def __init__(
        self,
        graph: fx.Graph,
        carries: Sequence[fx.Node],
        xs: Sequence[fx.Node],
        waiting: Collection[fx.Node],
        refused: dict[fx.Node, Reason] | None,
    ) -> None:
        self.graph, self.waiting, self.refused = graph, set(waiting), refused
        rows = carries[0].meta["val"].shape[:1]
        (self.rows,) = rows
        self.with_rows = {node for node in (*carries, *xs) if node.meta["val"].shape[:1] == rows}
        # Not waited for, and as it was: such ops run before or after the loop whatever they do.
        self.unchanged = {node for node in xs if node not in self.with_rows}
        self.by_step = set(self.unchanged)  # others in each step, the same for all rows
        self.lost: set[fx.Node] = set()  # refused, or made of what was
        self.layouts: dict[fx.Node, AxisLayout] = {}  # of what is not as it stands: rows elsewhere, or repeated
        self.replaced: dict[fx.Node, fx.Node] = {}

    def run(self) -> dict[fx.Node, fx.Node]:
        for node in list(self.graph.nodes):
            if node.op == "call_function":
                if not self.with_rows.isdisjoint(node.all_input_nodes):
                    self.with_rows.add(node)
                elif not self.by_step.isdisjoint(node.all_input_nodes):
                    self.by_step.add(node)
                with self.graph.inserting_before(node):
                    self.visit_waiting(node) if node in self.waiting else self.visit_or_leave(node)
                name(node)
        return self.replaced

    def visit_or_leave(self, node: fx.Node) -> None:
        repeats = node.target is aten.expand.default and node in self.by_step
        if not repeats and (not self.unchanged.isdisjoint(node.all_input_nodes) or self.picks_columns(node)):
            self.unchanged.add(node)
            return
        try:
            self.visit(node)
        except Unsupported:
            self.unchanged.add(node)

    def picks_columns(self, node: fx.Node) -> bool:
        """Whether the batch picks from a later dimension, as emission[:, symbol] does, which puts the rows there."""
        if node.target is not aten.index.Tensor or node.args[1][0] is not None:
            return False
        return any(index in self.with_rows for index in node.args[1])

    def visit_waiting(self, node: fx.Node) -> None:
        if not self.lost.isdisjoint(node.all_input_nodes):
            self.lost.add(node)
            return
        try:
            self.visit(node)
        except Unsupported as unsupported:
            if self.refused is None:
                raise
            self.refused[node] = unsupported.reason
            self.lost.add(node)

    def visit(self, node: fx.Node) -> None:
        rows, odd = node in self.with_rows, any(arg in self.layouts for arg in node.all_input_nodes)
        follow = FOLLOW.get(node.target)
        if follow is None and rows and (odd or self.spreads_one_row(node) or self.moves_rows(node)):
            follow = RowsFirst.pointwise if is_pointwise(node.target) else ELSEWHERE.get(node.target)
        if follow is None or not (rows or odd or node.target is aten.expand.default):
            if any(arg in self.layouts and arg in self.with_rows for arg in node.all_input_nodes):
                raise Unsupported(
                    "works on a value whose batch is not its first dimension",
                    op=str(node.target),
                    mend="keep the batch in front, and use einsum or matmul",
                )
            return
        layout = follow(self, node)
        self.with_rows |= {layout.node} if rows else set()
        if rows and layout.in_front:
            self.put(node, layout)
        elif rows or any(axis.kind == "repeated" for group in layout.dims for axis in group):
            self.layouts[node] = layout

    def spreads_one_row(self, node: fx.Node) -> bool:
        """Whether there is more in the dimension that is taken for the rows than a batch of one row has: it is another
        dimension, as of values that are put one behind the other."""
        value = node.meta["val"]
        return self.rows == 1 and isinstance(value, torch.Tensor) and value.shape[:1] not in ((), (1,))

    def moves_rows(self, node: fx.Node) -> bool:
        """Whether all with rows in front that it meets has fewer dimensions: broadcasting puts others before them."""
        if not is_pointwise(node.target):
            return False
        with_rows = [arg.meta["val"] for arg in node.all_input_nodes if arg in self.with_rows]
        return all(given.shape[:1] == (self.rows,) and given.dim() < node.meta["val"].dim() for given in with_rows)

    def layout(self, node: fx.Node) -> AxisLayout:
        return self.layouts.get(node) or layout_of(node, node in self.with_rows)

    def put(self, node: fx.Node, layout: AxisLayout) -> None:
        """The value has its rows in front: the node itself where it had them before, else what the layout knows."""
        has_no_weight = node.target is aten.mm.default and not self.by_step.isdisjoint(node.all_input_nodes)
        if not any(arg in self.layouts for arg in node.all_input_nodes) and keeps_front(node) and not has_no_weight:
            if node.target in SIZED:
                node.args = (node.args[0], [-1, *node.meta["val"].shape[1:]], *node.args[2:])
            return
        features = [axis for group in layout.dims[1:] for axis in group]
        value = reshaped(self.graph, placed(self.graph, layout, features), [-1, *node.meta["val"].shape[1:]])
        self.with_rows.add(value)
        node.replace_all_uses_with(value)
        self.replaced[node] = value

    def view(self, node: fx.Node) -> AxisLayout:
        before, sizes = self.layout(node.args[0]), node.meta["val"].shape
        layout = before.viewed(sizes)
        if layout is None and before.in_front and node.args[0] not in self.layouts and sizes[0] == before.rows:
            return layout_of(node, True)  # features are taken apart otherwise than by axes, each row's by itself
        return self.kept(node, layout)

    def permute(self, node: fx.Node) -> AxisLayout:
        return self.layout(node.args[0]).permuted([d % node.meta["val"].dim() for d in node.args[1]])

    def transpose(self, node: fx.Node) -> AxisLayout:
        order = list(range(node.meta["val"].dim()))
        a, b = node.args[1:] or (0, -1)
        order[a], order[b] = order[b], order[a]
        return self.layout(node.args[0]).permuted(order)

    def copy(self, node: fx.Node) -> AxisLayout:
        return self.pointwise(node) if node.target is aten.detach.default else self.layout(node.args[0])

    def pointwise(self, node: fx.Node) -> AxisLayout:
        return elsewhere.pointwise(self.graph, node, {arg: self.layout(arg) for arg in node.all_input_nodes})

    def folded(self, node: fx.Node) -> AxisLayout:
        return self.kept(node, elsewhere.folded(self.graph, node, self.layout(node.args[0])))

    def along_one(self, node: fx.Node) -> AxisLayout:
        return self.kept(node, elsewhere.along_one(self.graph, node, self.layout(node.args[0])))

    def joined(self, node: fx.Node) -> AxisLayout:
        return self.kept(node, elsewhere.joined(self.graph, node, [self.layout(arg) for arg in node.args[0]]))

    def written(self, node: fx.Node) -> AxisLayout:
        """PyTorch drops the dimension of a batch of one row from what is written."""
        x, indices, values, *options = node.args
        if self.rows != 1 or any(arg in self.layouts for arg in node.all_input_nodes if arg is not values):
            raise refused(node)
        given = self.layout(values)
        own = call(self.graph, node.target, x, indices, placed(self.graph, given, given.axes), *options)
        return replace(layout_of(node, True), node=own)

    def solved(self, node: fx.Node) -> AxisLayout:
        matrix, right = (self.layout(arg) for arg in node.args[:2])
        found = None if matrix.node in self.by_step else elsewhere.solved(self.graph, node, matrix, right)
        if found is None:
            raise refused(node)
        return found

    def solution(self, node: fx.Node) -> AxisLayout:
        solve, item = node.args
        if solve.target is not aten._linalg_solve_ex.default or item:
            raise refused(node)
        return self.layouts[solve]

    def expand(self, node: fx.Node) -> AxisLayout:
        before, sizes = self.layout(node.args[0]), node.meta["val"].shape
        new = len(sizes) - len(before.dims)
        dims: list[AxisGroup] = [(Axis(size, "repeated"),) if size > 1 else () for size in sizes[:new]]
        if before.rows is not None and new and tuple(sizes[new:]) == tuple(node.args[0].meta["val"].shape):
            return AxisLayout(before.node, before.axes, (*dims, *before.dims), before.rows)
        if before.rows is not None:
            return self.kept(node, None) if new or not before.in_front else layout_of(node, True)
        for group, old, size in zip(before.dims, node.args[0].meta["val"].shape, sizes[new:], strict=True):
            dims.append(group if old == size else (Axis(size, "repeated"),))
        return AxisLayout(before.node, before.axes, tuple(dims), None)

    def product(self, node: fx.Node) -> AxisLayout:
        left, right = (self.layout(arg) for arg in node.args)
        has_weight = right.rows is None and right.node not in self.by_step
        if node.target is aten.mm.default and has_weight and left.in_front and len(left.axes) < 2:
            return layout_of(node, True)
        return contracted(self.graph, node, left, right, self.by_step)

    def kept(self, node: fx.Node, layout: AxisLayout | None) -> AxisLayout:
        if layout is None:
            shapes = f"{list(node.meta['val'].shape)} of {list(node.all_input_nodes[0].meta['val'].shape)}"
            raise Unsupported(f"makes {shapes}, across the batch", op=str(node.target))
        return layout


ELSEWHERE: dict[Any, Callable[[RowsFirst, fx.Node], AxisLayout]] = {
    **dict.fromkeys(elsewhere.FOLDS, RowsFirst.folded),
    **dict.fromkeys(elsewhere.ONE_DIM, RowsFirst.along_one),
    aten.cat.default: RowsFirst.joined,
    aten._to_copy.default: RowsFirst.pointwise,
    **dict.fromkeys((aten.linalg_solve_triangular.default, aten._linalg_solve_ex.default), RowsFirst.solved),
    operator.getitem: RowsFirst.solution,
    aten.index_put.default: RowsFirst.written,
}
SIZED = {aten.view.default, aten._unsafe_view.default, aten.expand.default}  # name the size of the batch


def name(node: fx.Node) -> None:
    """What was put before the node comes from the same line of the cell."""
    new = node.prev
    while new.op == "call_function" and "path" not in new.meta:
        new.meta.update(path=node.meta.get("path", ""), line=node.meta.get("line", ""))
        new = new.prev


def keeps_front(node: fx.Node) -> bool:
    """Whether the op itself, of a value with its rows in front, leaves them there."""
    if node.target is aten.permute.default:
        return bool(node.args[1][0] % node.meta["val"].dim() == 0)
    if node.target is aten.transpose.int:
        return all(d % node.meta["val"].dim() for d in node.args[1:])
    if node.target in (aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims):
        rank = max(node.meta["val"].dim(), node.args[0].meta["val"].dim())
        dims = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
        return all(d % rank for d in dims)
    return node.target not in (aten.t.default, aten.bmm.default)


FOLLOW: dict[Any, Callable[[RowsFirst, fx.Node], AxisLayout]] = {
    aten.view.default: RowsFirst.view,
    aten._unsafe_view.default: RowsFirst.view,
    aten.unsqueeze.default: RowsFirst.view,
    aten.squeeze.dim: RowsFirst.view,
    aten.squeeze.dims: RowsFirst.view,
    aten.permute.default: RowsFirst.permute,
    aten.transpose.int: RowsFirst.transpose,
    aten.t.default: RowsFirst.transpose,
    aten.clone.default: RowsFirst.copy,
    aten.alias.default: RowsFirst.copy,
    aten.detach.default: RowsFirst.copy,
    aten.expand.default: RowsFirst.expand,
    aten.bmm.default: RowsFirst.product,
    aten.mm.default: RowsFirst.product,
}
