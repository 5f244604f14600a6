"""A chunk of steps as one affine map of the cotangent (BPPSA section 3.1): the backward sweep applied to a matrix.

The step's J^T is applied to each column of a basis as it is to a cotangent, in its own structure: weights are shared by
the batch, what is diagonal stays so, a reset selects. One more column takes along the cotangents that enter on the way.
A power of two is kept beside each column, or where J^T is diagonal each number: products of many Jacobians leave the
range of floating point, and what back-propagation represents has to survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from torch import fx

from bppsa.codegen.assembling.assemble import assemble, name_of, row_of
from bppsa.codegen.assembling.inplace import reuse_streams
from bppsa.codegen.assembling.sweeps import BackwardLowering, ForwardLowering, projections
from bppsa.codegen.language.expr import Access, Expr, Op, const, contiguous, load
from bppsa.codegen.language.ir import Buffer, Kernel, Kind, Reduce
from bppsa.codegen.language.verify import verify
from bppsa.codegen.lowering.lower import Lowering
from bppsa.codegen.lowering.roots import Root, root_of
from bppsa.codegen.lowering.row import Row, RowSegment
from bppsa.common.chain import Recurrence, Transposed, output_of, placeholders

# RUNNING buffers beside "g_carry{i}". "entering", [rows, 1]: 1 where a column takes cotangents of outputs along, else
# 0. "exponents": [rows, N] where J^T is diagonal, N the widths of all carries, else [rows, 1].
ENTERING, EXPONENTS = "entering", "exponents"


def reduction(
    recurrence: Recurrence,
    transposed: Transposed,
    *,
    inline: bool,
    diagonal: bool,
    simplified: Transposed | None = None,
) -> Kernel:
    """Reads what `program.build`'s backward reads, and writes nothing but its RUNNING buffers.

    simplified: of the recurrence `with_diagonals`, to be reduced in its place; "diagonal{i}", VECTORs, are its rows.
    """
    forward = ForwardLowering(recurrence, inline)
    backward = BackwardLowering(forward, transposed)
    kernel = ReductionLowering(backward, diagonal, transposed if simplified is None else simplified).kernel()
    kernels = reuse_streams(forward.kernel(backward.saved), backward.kernel(), projections(recurrence), kernel)
    return verify(kernels[-1])


class ReductionLowering:
    def __init__(self, backward: BackwardLowering, diagonal: bool, transposed: Transposed) -> None:
        self.backward, self.diagonal = backward, diagonal
        self.widths = backward.recurrence.carries
        graph, carries = only_carries(transposed)
        self.diagonals = [Buffer(name_of(n), Kind.VECTOR, row_of(n).width) for n in placeholders(graph, "diagonal")]
        self.lowering = Lowering(self.leaf)
        self.lowering.lower(graph)
        self.rows = [
            Row((RowSegment(width, const(0.0)),)) if node is None else self.lowering.row(node)
            for node, width in zip(carries, self.widths, strict=True)
        ]

    def leaf(self, node: fx.Node) -> Row:
        if node.meta["role"].kind == "diagonal":
            return row_of(node)
        row = self.backward.leaf(node)
        if node.meta["role"].kind != "g_output":
            return row
        there = load(Access(ENTERING, broadcast=True))
        return Row(tuple(replace(s, expr=Expr(Op.WHERE, there, s.expr, const(0.0))) for s in row.segments))

    def kernel(self) -> Kernel:
        exponents = Buffer(EXPONENTS, Kind.RUNNING, sum(self.widths) if self.diagonal else 1)
        extra = (Buffer(ENTERING, Kind.RUNNING, 1), exponents, *self.diagonals)
        roots = [*self.lowering.roots, *(self.number_by_number() if self.diagonal else self.column_by_column())]
        return assemble("reduction", self.lowering, roots, self.backward.recurrence, along=False, extra=extra)

    def number_by_number(self) -> Iterator[Root]:
        for target, place, segment in self.segments():
            shift = unless_entering(Expr(Op.EXPONENT, segment.expr))
            yield root_of(target, replace(segment, expr=scaled(segment.expr, shift)))
            place = replace(place, strides=contiguous(segment.shape))
            yield root_of(place, replace(segment, expr=Expr(Op.ADD, load(place), shift)))

    def column_by_column(self) -> Iterator[Root]:
        """Rescales each column by the sum of its numbers' sizes: as near to the largest as a rescaling needs."""
        sizes = []
        for _, _, segment in self.segments():
            sizes.append(Access(self.lowering.new_scratch(1), broadcast=True))
            yield Root(sizes[-1], Expr(Op.ABS, segment.expr), segment.width, Reduce.ROWS, segment.shape)
        size = reduce(lambda a, b: Expr(Op.ADD, a, b), map(load, sizes))
        kept = Access(self.lowering.new_scratch(1), broadcast=True)
        yield Root(kept, unless_entering(Expr(Op.EXPONENT, size)), 1)
        for target, _, segment in self.segments():
            yield root_of(target, replace(segment, expr=scaled(segment.expr, load(kept))))
        total = Access(EXPONENTS)
        yield Root(total, Expr(Op.ADD, load(total), load(replace(kept, broadcast=False))), 1)

    def segments(self) -> Iterator[tuple[Access, Access, RowSegment]]:
        """All cotangents that the step leaves, with where they go and their places in a row of all carries."""
        start = 0
        for i, row in enumerate(self.rows):
            at = 0
            for segment in row.segments:
                yield Access(f"g_carry{i}", at), Access(EXPONENTS, start + at), segment
                at += segment.width
            start += self.widths[i]


def unless_entering(value: Expr) -> Expr:
    """The column of entering cotangents stays as it is: others are added to it."""
    return Expr(Op.WHERE, load(Access(ENTERING, broadcast=True)), const(0.0), value)


def scaled(value: Expr, shift: Expr) -> Expr:
    return Expr(Op.LDEXP, value, Expr(Op.NEG, shift))


def only_carries(transposed: Transposed) -> tuple[fx.Graph, tuple[fx.Node | None, ...]]:
    """The transposed body without the cotangents of anything but carries."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(transposed.graph, copies)
    graph.output(tuple(None if node is None else copies[node] for node in transposed.carries))
    graph.eliminate_dead_code()
    return graph, output_of(graph)
