"""From an fx graph over the values of one step to rows of expressions, and the stores that must happen on the way.

A matrix product needs its left operand in memory, and so does a row sum its result: the lowering places those in
buffers and leaves everything else as expressions. `group.py` then sorts the stores into groups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from bppsa.codegen.language.expr import Access, Dot, Expr, Op, const, dot, load
from bppsa.codegen.language.ir import Buffer, Kind, Reduce
from bppsa.codegen.lowering import formulas, lower_axes, row_sum
from bppsa.codegen.lowering.lower_folds import FOLDS
from bppsa.codegen.lowering.lower_matrices import MATRIX_OPS, Pivot
from bppsa.codegen.lowering.pointwise import POINTWISE
from bppsa.codegen.lowering.roots import Root, root_of
from bppsa.codegen.lowering.row import Row, RowSegment, concatenate, leaf
from bppsa.common.chain import FILLS, Weight
from bppsa.errors import Unsupported

aten = torch.ops.aten


@dataclass(frozen=True)
class ColumnRun:
    """Columns [start, start + width) of a value stand at [column, column + width) of a buffer."""

    start: int
    column: int
    width: int


@dataclass
class Workspace:
    """A buffer that grows as rows are placed in it; a segment that is there already is not stored again."""

    name: str
    kind: Kind
    width: int = 0
    reduce: Reduce = Reduce.NONE
    placed: dict[RowSegment, int] = field(default_factory=dict)

    def place(self, segment: RowSegment, roots: list[Root]) -> int:
        if segment not in self.placed:
            self.append(segment, roots)
        return self.placed[segment]

    def append(self, segment: RowSegment, roots: list[Root]) -> None:
        self.placed.setdefault(segment, self.width)
        roots.append(root_of(Access(self.name, self.width), segment, self.reduce))
        self.width += segment.width

    def runs(self, row: Row, roots: list[Root]) -> tuple[ColumnRun, ...]:
        """Place `row`, segment by segment, and say where its columns stand: adjacent ones merged."""
        runs: list[ColumnRun] = []
        start = 0
        for segment in row.segments:
            run = ColumnRun(start, self.place(segment, roots), segment.width)
            last = runs[-1] if runs else None
            if last and last.column + last.width == run.column:
                runs[-1] = ColumnRun(last.start, last.column, last.width + run.width)
            else:
                runs.append(run)
            start += segment.width
        return tuple(runs)

    def side_by_side(self, row: Row, roots: list[Root]) -> int:
        """The column at which all of `row` stands as one run: where it is already, or stored anew."""
        columns = [self.placed.get(segment, -1) for segment in row.segments]
        ends = [column + segment.width for column, segment in zip(columns, row.segments, strict=True)]
        if -1 not in columns and ends[:-1] == columns[1:]:
            return columns[0]
        first = self.width
        for segment in row.segments:
            self.append(segment, roots)
        return first

    def buffer(self) -> Buffer:
        return Buffer(self.name, self.kind, self.width)


class Lowering:
    """Lowers one graph. `leaves` gives the row of a placeholder."""

    def __init__(self, leaves: Callable[[fx.Node], Row], operands: dict[fx.Node, Workspace] | None = None) -> None:
        self.leaves = leaves
        self.operands = operands or {}  # left operands that belong in a given workspace, not in scratch
        self.rows: dict[fx.Node, Row] = {}
        self.roots: list[Root] = []
        self.weights: dict[Weight, tuple[int, int]] = {}  # -> depth, width
        self.scratch: dict[tuple[RowSegment, ...], Access] = {}
        self.folds: dict[tuple[RowSegment, Reduce], Access] = {}
        self.scratch_widths: list[int] = []
        self.pivots: dict[fx.Node, list[Pivot]] = {}  # of inverses

    def lower(self, graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function" and node.target is not aten.t.default:
                self.rows[node] = self.call(node)

    def row(self, node: fx.Node) -> Row:
        if node not in self.rows:
            self.rows[node] = self.leaves(node)
        return self.rows[node]

    def call(self, node: fx.Node) -> Row:
        target: Any = node.target
        value = node.meta["val"]
        if value.is_complex():
            raise Unsupported(f"computes with {value.dtype}", op=str(target), mend="use real numbers")
        if target in STRUCTURE:
            return STRUCTURE[target](self, node)
        if target in POINTWISE:
            return self.pointwise(node)
        raise Unsupported("has no kernel", op=str(target))

    def pointwise(self, node: fx.Node) -> Row:
        nodes = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if node.target is aten.add.Tensor and node.meta["val"].dtype is torch.bool:
            raise Unsupported("adds truth values", op=str(node.target), mend="use | or numbers")
        builder = POINTWISE[node.target]

        def build(*exprs: Expr) -> Expr | None:
            given = iter(exprs)
            args = [next(given) if isinstance(arg, fx.Node) else arg for arg in node.args]
            return builder(*args, **node.kwargs)

        row = lower_axes.pointwise(self, build, nodes, node)
        if row is None:
            raise Unsupported(f"has no kernel for the arguments {node.args}", op=str(node.target))
        return row

    def matmul(self, node: fx.Node) -> Row:
        left, right = node.args
        return self.product(self.materialise(left), Weight.of(right), *right.meta["val"].shape)

    def product(self, left: Access, weight: Weight, depth: int, width: int) -> Row:
        self.weights[weight] = (depth, width)
        product = RowSegment(width, dot(Dot(left, weight_name(weight))))
        return self.one_column(product) if width == 1 else Row((product,))

    def materialise(self, node: fx.Node) -> Access:
        """The place at which the value stands in memory, as one range of columns."""
        row = self.row(node)
        stands = row.in_memory
        if stands is not None:
            return stands
        if node in self.operands:
            workspace = self.operands[node]
            runs = workspace.runs(row, self.roots)
            if len(runs) == 1:
                return Access(workspace.name, runs[0].column)
        return self.in_scratch(row)

    def in_scratch(self, row: Row) -> Access:
        """The place at which the row stands in scratch, as one range of columns."""
        if row.segments not in self.scratch:
            access = Access(self.new_scratch(row.width))
            self.scratch[row.segments] = access
            at = 0
            for segment in row.segments:
                self.roots.append(root_of(Access(access.buffer, at), segment))
                at += segment.width
        return self.scratch[row.segments]

    def new_scratch(self, width: int) -> str:
        self.scratch_widths.append(width)
        return f"scratch{len(self.scratch_widths) - 1}"

    def sum(self, row: Row) -> Row:
        """The sum of all columns."""
        total: Expr | None = None
        for segment in row_sum.of_segments(row.segments):
            for factor, term in row_sum.terms(segment.expr).items():
                part = load(self.fold(RowSegment(segment.width, term), Reduce.ROWS))
                part = part if factor is None else Expr(Op.MUL, factor, part)
                total = part if total is None else Expr(Op.ADD, total, part)
        assert total is not None
        return Row((RowSegment(1, total),))

    def largest(self, row: Row) -> Row:
        """The largest of all columns."""
        parts = [load(self.fold(segment, Reduce.MAX)) for segment in row.segments]
        return Row((RowSegment(1, functools.reduce(formulas.maximum, parts)),))

    def fold(self, segment: RowSegment, reduce: Reduce) -> Access:
        key = segment, reduce
        if key not in self.folds:
            access = self.folds[key] = Access(self.new_scratch(1), broadcast=True)
            self.roots.append(Root(access, segment.expr, segment.width, reduce))
        return self.folds[key]

    def select(self, node: fx.Node) -> Row:
        if lower_axes.is_wide(node.args[0]) or not self.row(node.args[0]).is_one_axis:
            return lower_axes.select(self, node)
        row = self.row(node.args[0])
        index = node.args[2] % row.width
        return self.one_column(row.columns(index, index + 1).segments[0])

    def one_column(self, segment: RowSegment) -> Row:
        """A row of width 1 meets every column of wider ones, so it is read from memory, the same for all j."""
        access = Access(self.new_scratch(1), broadcast=True)
        self.roots.append(Root(access, segment.expr, 1))
        return leaf(access, 1)

    def concatenate(self, node: fx.Node) -> Row:
        if lower_axes.interleaves(node):
            return lower_axes.concatenate(self, node)
        return concatenate(self.row(piece) for piece in node.args[0])

    def fill(self, node: fx.Node) -> Row:
        return Row((RowSegment(columns(node), const(FILLS[node.target](node.args))),))

    def same(self, node: fx.Node) -> Row:
        """Views and copies that keep every row's numbers in their order, or repeat a single one."""
        source, row = node.args[0].meta["val"], self.row(node.args[0])
        width = columns(node)
        dtype = node.meta["val"].dtype
        if source.dtype.is_floating_point and dtype.is_floating_point and source.dtype != dtype:
            raise Unsupported(f"changes {source.dtype} to {dtype}", op=str(node.target))
        if source.dtype != dtype and not dtype.is_floating_point:
            sizes = lower_axes.dims(node.args[0])
            made = lower_axes.combined(self, AS_WHOLE[dtype is torch.bool], [(row, sizes)], sizes)
            assert made is not None
            row = made
        if row.width == width:
            return row
        if row.width == 1 and node.target is aten.expand.default:
            return Row((RowSegment(width, row.segments[0].expr),))
        if node.target is aten.expand.default:
            return lower_axes.expand(self, node)
        raise Unsupported(f"makes {list(node.meta['val'].shape)} of {list(source.shape)}", op=str(node.target))


AS_WHOLE = {False: formulas.trunc, True: lambda x: formulas.negate(formulas.negate(x))}


def columns(node: fx.Node) -> int:
    """How many numbers are in each row of a value that has rows."""
    return int(node.meta["val"].shape[1:].numel())


def weight_name(weight: Weight) -> str:
    return f"weight{weight.param}{'t' if weight.transposed else ''}"


STRUCTURE: dict[Any, Callable[[Lowering, fx.Node], Row]] = {
    aten.mm.default: Lowering.matmul,
    aten.cat.default: Lowering.concatenate,
    aten.slice.Tensor: lower_axes.take,
    aten.select.int: Lowering.select,
    **FOLDS,
    **MATRIX_OPS,
    aten.permute.default: lower_axes.permute,
    aten.transpose.int: lower_axes.transpose,
    aten.flip.default: lower_axes.flip,
    **dict.fromkeys(FILLS, Lowering.fill),
    **dict.fromkeys(
        (
            aten.expand.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.view.default,
            aten._unsafe_view.default,
            aten.clone.default,
            aten.alias.default,
            aten.detach.default,
            aten._to_copy.default,
        ),
        Lowering.same,
    ),
}
IN_KERNELS = frozenset((*STRUCTURE, *POINTWISE))
