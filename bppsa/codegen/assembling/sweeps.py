"""A recurrence's body and its transposed body, lowered: what a forward sweep stores, and what a backward reads.

The backward body says which forward values it reads. Each is recomputed where that takes no product and no lost value
(tanh(c) from the stored c), and otherwise saved by the forward sweep.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from torch import fx

from bppsa.codegen.assembling.assemble import assemble, row_of
from bppsa.codegen.assembling.group import GroupExtent
from bppsa.codegen.language.expr import Access, Expr, Op, const, load, rewrite, topological
from bppsa.codegen.language.ir import Kernel, Kind, Reduce
from bppsa.codegen.lowering.lower import ColumnRun, Lowering, Workspace
from bppsa.codegen.lowering.roots import Root, root_of
from bppsa.codegen.lowering.row import Row, RowSegment, leaf
from bppsa.common.chain import Recurrence, Transposed, Weight, placeholders


@dataclass(frozen=True)
class BufferRows:
    """Rows of all steps that a matmul after the loop reads: columns [column, column + width) of a buffer."""

    buffer: str
    column: int
    width: int
    after: bool = False


@dataclass(frozen=True)
class OuterSum:
    """weight[:, run.start : run.start + run.width].grad += left^T cotangents[run.column ...], for each run."""

    weight: Weight
    left: BufferRows
    runs: tuple[ColumnRun, ...]


def projections(recurrence: Recurrence) -> dict[str, int]:
    """The streams that are private to the sweep, with their widths: products computed for it."""
    return {f"stream{k}": s.width for k, s in enumerate(recurrence.streams) if s.weight is not None}


def stores(buffer: str, row: Row, *, after: bool = False) -> list[Root]:
    """Stores of a whole row at the start of a buffer."""
    roots, at = [], 0
    for segment in row.segments:
        roots.append(root_of(Access(buffer, at, after=after), segment))
        at += segment.width
    return roots


class ForwardLowering:
    """The body as one sweep: states and outputs are stored, and with `kernel` also what the backward will read."""

    def __init__(self, recurrence: Recurrence, inline: bool) -> None:
        self.recurrence, self.inline = recurrence, inline
        self.lowering = Lowering(self.leaf)
        self.lowering.lower(recurrence.body)
        carries = [self.lowering.row(node) for node in recurrence.next_carries]
        outputs = [self.lowering.row(node) for node in recurrence.output_nodes]
        self.output_carry = tuple(carries.index(row) if row in carries else None for row in outputs)
        self.stores = [root for i, row in enumerate(carries) for root in stores(f"carry{i}", row, after=True)]
        self.in_states = {(root.value, root.extent): root.target for root in self.stores}
        for k, row in enumerate(outputs):
            if self.output_carry[k] is None:
                self.stores += stores(f"output{k}", row)

    def leaf(self, node: fx.Node) -> Row:
        role = node.meta["role"]
        stream = self.recurrence.streams[role.index] if role.kind == "stream" else None
        if not self.inline or stream is None or stream.weight is None:
            return row_of(node)
        return self.lowering.product(Access(f"source{stream.source}"), stream.weight, stream.depth, stream.width)

    def kernel(self, saved: list[Root]) -> Kernel:
        return assemble(
            "forward", self.lowering, [*self.lowering.roots, *self.stores, *saved], self.recurrence, along=True
        )

    def inference(self) -> Kernel:
        """Carries that nobody asks for step by step keep only their last value."""
        unseen = set(range(len(self.recurrence.carries))) - set(self.output_carry)
        running = {f"carry{i}" for i in unseen}
        roots = [*self.lowering.roots, *self.stores]
        return assemble("inference", self.lowering, roots, self.recurrence, along=True, running=running)


class BackwardLowering:
    """The transposed body as one sweep against time. Forward values it reads are found in memory, computed again where
    that is cheap, or saved by the forward."""

    def __init__(self, forward: ForwardLowering, transposed: Transposed) -> None:
        self.forward, self.transposed, self.recurrence = forward, transposed, forward.recurrence
        self.kept = dict(forward.in_states)  # forward values that the backward finds in memory
        self.saved: list[Root] = []
        self.recalls: dict[GroupExtent, dict[Expr, Expr]] = {}  # what values are in terms of what is kept
        self.at_hand: dict[GroupExtent, dict[Expr, bool]] = {}  # whether they are `available`
        self.body = {node.name: node for node in self.recurrence.body.nodes}
        for name in self.values_in_order():
            for segment in forward.lowering.row(self.body[name]).segments:
                self.recall(segment)
        self.cotangents = Workspace("cotangents", Kind.STREAM)
        self.operands = Workspace("operands", Kind.STREAM)
        self.sums = Workspace("sums", Kind.COLUMN_SUM, reduce=Reduce.COLUMNS)
        self.lowering = Lowering(self.leaf, {outer.right: self.cotangents for outer in transposed.outers})
        self.lowering.lower(transposed.graph)
        self.place()

    def values_in_order(self) -> list[str]:
        """Forward values the backward reads, earliest first: what is saved first may spare a later one."""
        wanted = {n.meta["role"].index for n in placeholders(self.transposed.graph, "value")}
        return [name for name in self.body if name in wanted]

    def place(self) -> None:
        row, roots = self.lowering.row, self.lowering.roots
        self.outers = tuple(
            OuterSum(outer.weight, self.left(outer.left), self.cotangents.runs(row(outer.right), roots))
            for outer in self.transposed.outers
        )
        self.stream_runs = tuple(
            None if node is None else self.of_stream(k, row(node)) for k, node in enumerate(self.transposed.streams)
        )
        self.sum_runs = tuple((s.param, self.sums.runs(row(s.right), roots)) for s in self.transposed.sums)
        for i, node in enumerate(self.transposed.carries):
            zero = Row((RowSegment(self.recurrence.carries[i], const(0.0)),))
            roots += stores(f"g_carry{i}", zero if node is None else row(node))

    def of_stream(self, k: int, row: Row) -> tuple[ColumnRun, ...]:
        """Stores the cotangent of a stream; one that is no product's is a gradient as it is, in memory of its own."""
        if self.recurrence.streams[k].weight is not None:
            return self.cotangents.runs(row, self.lowering.roots)
        self.lowering.roots += stores(f"g_stream{k}", row)
        return ()

    def leaf(self, node: fx.Node) -> Row:
        role = node.meta["role"]
        if role.kind in ("g_carry", "g_output"):
            return row_of(node)
        row = self.forward.lowering.row(self.body[role.index if role.kind == "value" else f"{role.kind}{role.index}"])
        return self.recalled(row)

    def recalled(self, row: Row) -> Row:
        return Row(tuple(RowSegment(s.width, self.recall(s), s.shape) for s in row.segments))

    def recall(self, segment: RowSegment) -> Expr:
        """The forward value in terms of what the backward can read; saved if it cannot be had otherwise. Of several
        axes it is always computed again, from what stands in memory: that has fewer columns."""
        extent = segment.shape or segment.width
        if not segment.shape and not self.available(segment.expr, extent):
            self.save(segment)
        return rewrite(segment.expr, lambda node: self.stored(node, extent), self.recalls.setdefault(extent, {}))

    def stored(self, node: Expr, extent: GroupExtent) -> Expr | None:
        access, payload = self.found(node, extent), node.payload
        if access is not None:
            return read(access, node)
        in_scratch = isinstance(extent, tuple) and isinstance(payload, Access) and payload.buffer.startswith("scratch")
        return load(self.out_of_scratch(payload)) if in_scratch and isinstance(payload, Access) else None

    def out_of_scratch(self, access: Access) -> Access:
        """The place at which the backward finds what the forward had in scratch."""
        width = self.forward.lowering.scratch_widths[int(access.buffer.removeprefix("scratch"))]
        there = self.recall(leaf(Access(access.buffer), width).segments[0]).payload
        assert isinstance(there, Access)
        return replace(access, buffer=there.buffer, column=there.column + access.column, after=there.after)

    def save(self, segment: RowSegment) -> None:
        column = sum(root.width for root in self.saved)
        root = root_of(Access("saved", column), segment)
        self.saved.append(root)
        self.recalls.clear()
        self.at_hand.clear()
        self.kept[root.value, root.extent] = root.target

    def found(self, node: Expr, extent: GroupExtent) -> Access | None:
        """The place at which the backward finds such columns of a forward value: one, of what is the same in all of
        them."""
        known = self.kept.get((node, extent))
        return self.kept.get((node, 1)) if known is None and node.uniform else known

    def available(self, expr: Expr, extent: GroupExtent) -> bool:
        """Whether cheap work on states, parameters, x and saved values gives it: no product, no other stream."""
        known = self.at_hand.setdefault(extent, {})
        private = projections(self.recurrence)
        for node in topological((expr,), known):
            known[node] = self.found(node, extent) is not None or (
                self.is_read(node.payload, private)
                if isinstance(node.payload, Access)
                else node.op is not Op.DOT and all(known[arg] for arg in node.args)
            )
        own = expr.payload
        return known[expr] or (isinstance(own, Access) and self.is_read(own, {}))

    def is_read(self, access: Access, private: Container[str]) -> bool:
        return not access.buffer.startswith("scratch") and access.buffer not in private

    def left(self, node: fx.Node) -> BufferRows:
        """The place at which the left operand's rows of all steps stand once the backward sweep is done."""
        row = self.forward.lowering.row(node)
        if row in (rows := [self.forward.lowering.row(n) for n in self.recurrence.next_carries]):
            return BufferRows(f"carry{rows.index(row)}", 0, row.width, after=True)
        recalled = self.recalled(row)
        access = recalled.in_memory
        if access is not None and self.outlives(access.buffer):
            return BufferRows(access.buffer, access.column, row.width, access.after)
        return BufferRows("operands", self.operands.side_by_side(recalled, self.lowering.roots), row.width)

    def outlives(self, buffer: str) -> bool:
        """Whether the buffer is there after the sweep, and holds what it did before the forward sweep's."""
        return buffer != "saved" and buffer not in projections(self.recurrence)

    def kernel(self) -> Kernel:
        workspaces = [w.buffer() for w in (self.cotangents, self.operands, self.sums)]
        return assemble("backward", self.lowering, self.lowering.roots, self.recurrence, along=False, extra=workspaces)


def read(access: Access, node: Expr) -> Expr:
    """A load of what stands for the node."""
    return load(replace(access, broadcast=True, strides=()) if node.uniform else access)
