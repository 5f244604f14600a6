"""From an fx graph over the values of one step to rows of expressions, and the stores that must happen on the way.

A matrix product needs its left operand in memory, and so does a row sum its result: the lowering places those in
buffers and leaves everything else as expressions. `group.py` then sorts the stores into groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from bppsa.chain import FILLS, Weight
from bppsa.codegen import row_sum
from bppsa.codegen.ir import Access, Buffer, Dot, Expr, Kind, Op, Reduce, const, dot, load
from bppsa.codegen.pointwise import POINTWISE
from bppsa.codegen.row import Row, Segment, concatenate, leaf, zip_with
from bppsa.errors import Reason, Unsupported

aten = torch.ops.aten


@dataclass(frozen=True)
class Root:
    """A store with the width it covers: the group it goes into is not known yet."""

    target: Access
    value: Expr
    width: int
    reduce: Reduce = Reduce.NONE


@dataclass(frozen=True)
class Run:
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
    placed: dict[Segment, int] = field(default_factory=dict)

    def place(self, segment: Segment, roots: list[Root]) -> int:
        if segment not in self.placed:
            self.append(segment, roots)
        return self.placed[segment]

    def append(self, segment: Segment, roots: list[Root]) -> None:
        self.placed.setdefault(segment, self.width)
        roots.append(Root(Access(self.name, self.width), segment.expr, segment.width, self.reduce))
        self.width += segment.width

    def runs(self, row: Row, roots: list[Root]) -> tuple[Run, ...]:
        """Place `row`, segment by segment, and say where its columns stand: adjacent ones merged."""
        runs: list[Run] = []
        start = 0
        for segment in row.segments:
            run = Run(start, self.place(segment, roots), segment.width)
            last = runs[-1] if runs else None
            if last and last.column + last.width == run.column:
                runs[-1] = Run(last.start, last.column, last.width + run.width)
            else:
                runs.append(run)
            start += segment.width
        return tuple(runs)

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
        self.scratch: dict[tuple[Segment, ...], Access] = {}
        self.sums: dict[Segment, Access] = {}
        self.scratch_widths: list[int] = []

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
        if not (value.dtype.is_floating_point or value.dtype is torch.bool):
            raise Unsupported(Reason(f"computes with {value.dtype}", op=str(target), mend="use floating point or bool"))
        if target in STRUCTURE:
            return STRUCTURE[target](self, node)
        if target in POINTWISE:
            return self.pointwise(node)
        raise Unsupported(Reason("has no kernel", op=str(target)))

    def pointwise(self, node: fx.Node) -> Row:
        nodes = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if node.target is aten.add.Tensor and node.meta["val"].dtype is torch.bool:
            raise Unsupported(Reason("adds truth values", op=str(node.target), mend="use | or numbers"))
        builder = POINTWISE[node.target]

        def build(*exprs: Expr) -> Expr | None:
            given = iter(exprs)
            args = [next(given) if isinstance(arg, fx.Node) else arg for arg in node.args]
            return builder(*args, **node.kwargs)

        row = zip_with(build, [self.row(n) for n in nodes])
        if row is None:
            raise Unsupported(Reason(f"has no kernel for the arguments {node.args}", op=str(node.target)))
        return row

    def matmul(self, node: fx.Node) -> Row:
        left, right = node.args
        return self.product(self.materialise(left), Weight.of(right), *right.meta["val"].shape)

    def product(self, left: Access, weight: Weight, depth: int, width: int) -> Row:
        self.weights[weight] = (depth, width)
        product = Segment(width, dot(Dot(left, weight_name(weight))))
        return self.one_column(product) if width == 1 else Row((product,))

    def materialise(self, node: fx.Node) -> Access:
        """Where the value stands in memory as one stretch of columns."""
        row = self.row(node)
        if len(row.segments) == 1 and isinstance(row.segments[0].expr.payload, Access):
            return row.segments[0].expr.payload
        if node in self.operands:
            workspace = self.operands[node]
            runs = workspace.runs(row, self.roots)
            if len(runs) == 1:
                return Access(workspace.name, runs[0].column)
        if row.segments not in self.scratch:
            access = Access(self.new_scratch(row.width))
            self.scratch[row.segments] = access
            at = 0
            for segment in row.segments:
                self.roots.append(Root(Access(access.buffer, at), segment.expr, segment.width))
                at += segment.width
        return self.scratch[row.segments]

    def new_scratch(self, width: int) -> str:
        self.scratch_widths.append(width)
        return f"scratch{len(self.scratch_widths) - 1}"

    def row_sum(self, node: fx.Node) -> Row:
        total: Expr | None = None
        for segment in row_sum.of_segments(self.row(node.args[0]).segments):
            for factor, term in row_sum.terms(segment.expr).items():
                part = load(self.sum_of(Segment(segment.width, term)))
                part = part if factor is None else Expr(Op.MUL, factor, part)
                total = part if total is None else Expr(Op.ADD, total, part)
        assert total is not None
        return Row((Segment(1, total),))

    def sum_of(self, segment: Segment) -> Access:
        if segment not in self.sums:
            access = self.sums[segment] = Access(self.new_scratch(1), broadcast=True)
            self.roots.append(Root(access, segment.expr, segment.width, Reduce.ROWS))
        return self.sums[segment]

    def take_columns(self, node: fx.Node) -> Row:
        row = self.row(node.args[0])
        given = list(node.args[2:])
        begin, stop, stride = slice(*given, *(0, None, 1)[len(given) :]).indices(row.width)
        if stride != 1:
            raise Unsupported(Reason("takes every other column", op=str(node.target)))
        part = row.columns(begin, stop)
        return self.one_column(part.segments[0]) if part.width == 1 < row.width else part

    def select(self, node: fx.Node) -> Row:
        row = self.row(node.args[0])
        index = node.args[2] % row.width
        return self.one_column(row.columns(index, index + 1).segments[0])

    def one_column(self, segment: Segment) -> Row:
        """A row of width 1 meets every column of wider ones, so it is read from memory, the same for all j."""
        access = Access(self.new_scratch(1), broadcast=True)
        self.roots.append(Root(access, segment.expr, 1))
        return leaf(access, 1)

    def concatenate(self, node: fx.Node) -> Row:
        return concatenate(self.row(piece) for piece in node.args[0])

    def fill(self, node: fx.Node) -> Row:
        return Row((Segment(columns(node), const(FILLS[node.target](node.args))),))

    def same(self, node: fx.Node) -> Row:
        """Views and copies that keep every row's numbers in their order, or repeat a single one."""
        source, row = node.args[0].meta["val"], self.row(node.args[0])
        width = columns(node)
        if source.dtype.is_floating_point and source.dtype != node.meta["val"].dtype:
            raise Unsupported(Reason(f"changes {source.dtype} to {node.meta['val'].dtype}", op=str(node.target)))
        if row.width == width:
            return row
        if row.width == 1 and node.target is aten.expand.default:
            return Row((Segment(width, row.segments[0].expr),))
        raise Unsupported(Reason(f"makes {list(node.meta['val'].shape)} of {list(source.shape)}", op=str(node.target)))


def columns(node: fx.Node) -> int:
    value = node.meta["val"]
    if value.dim() > 2:
        raise Unsupported(Reason(f"makes a value of shape {list(value.shape)}", op=str(node.target)))
    return value.shape[1] if value.dim() == 2 else 1


def weight_name(weight: Weight) -> str:
    return f"weight{weight.param}{'t' if weight.transposed else ''}"


STRUCTURE: dict[Any, Callable[[Lowering, fx.Node], Row]] = {
    aten.mm.default: Lowering.matmul,
    aten.cat.default: Lowering.concatenate,
    aten.slice.Tensor: Lowering.take_columns,
    aten.select.int: Lowering.select,
    aten.sum.dim_IntList: Lowering.row_sum,
    **dict.fromkeys(FILLS, Lowering.fill),
    **dict.fromkeys(
        (
            aten.expand.default,
            aten.unsqueeze.default,
            aten.squeeze.dim,
            aten.view.default,
            aten.clone.default,
            aten.alias.default,
            aten.detach.default,
            aten._to_copy.default,
        ),
        Lowering.same,
    ),
}
