"""What the passes know about a recurrence or a feed-forward chain, handed on to the rooms after them: plain records
over fx graphs, of ATen ops. Every node carries a stand-in tensor in `meta["val"]`.

Of a recurrence a graph holds the values of one step: `[B, n]` rows (or `[B]`), and parameters without a batch
dimension. A placeholder says what it stands for in `meta["role"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from bppsa.errors import Reason

aten = torch.ops.aten

# Ops that give the numbers of their operand again in the same shape, perhaps in another dtype.
HANDED_ON = {aten.clone.default, aten.alias.default, aten.detach.default, aten._to_copy.default}
# By op, the number that it fills its result with, from the node's arguments.
FILLS: dict[Any, Callable[[tuple], float]] = {
    aten.zeros.default: lambda args: 0.0,
    aten.ones.default: lambda args: 1.0,
    aten.full.default: lambda args: float(args[1]),
    aten.zeros_like.default: lambda args: 0.0,
    aten.ones_like.default: lambda args: 1.0,
    aten.full_like.default: lambda args: float(args[1]),
    aten.new_zeros.default: lambda args: 0.0,
    aten.new_ones.default: lambda args: 1.0,
    aten.new_full.default: lambda args: float(args[2]),
    aten.scalar_tensor.default: lambda args: float(args[0]),
}

COUNTS_ROWS = {aten.new_zeros.default, aten.new_ones.default, aten.new_full.default}  # their sizes are numbers

ALONG_BATCH = Reason("works along the batch dimension", mend="name the dimensions of one row, as h.sum(-1) does")

# Pointwise ops that torch does not mark as such, in one version or another.
UNMARKED = {
    aten.complex.default,
    aten.floor_divide.Scalar,
    aten.floor_divide.default,
    aten.hardswish.default,
    aten.leaky_relu.default,
    aten.masked_fill.Tensor,
    aten.polar.default,
    aten.rsub.Tensor,
    aten.where.Scalar,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
}


def is_pointwise(op: Any) -> bool:
    """Whether a node's target is one; it may also be Python's `operator.getitem`, which takes one of several
    results."""
    if not isinstance(op, OpOverload) or len(op._schema.returns) != 1:  # as frexp has two
        return False
    return torch.Tag.pointwise in op.tags or op in UNMARKED


@dataclass(frozen=True)
class Role:
    """What a placeholder stands for: ("carry" | "stream" | "param", index), and in a transposed body also
    ("value", name of a node of the body) or ("g_carry" | "g_output", index)."""

    kind: str
    index: int | str


@dataclass(frozen=True)
class Weight:
    """The right operand of a matrix product, logically [K, N]: parameter `param`, or its transpose."""

    param: int
    transposed: bool

    @staticmethod
    def of(node: fx.Node) -> Weight:
        if node.target is aten.t.default:
            inner = Weight.of(node.args[0])
            return Weight(inner.param, not inner.transposed)
        return Weight(node.meta["role"].index, False)


@dataclass(frozen=True)
class Stream:
    """What the body reads at each step besides the carry: rows `source` as they are, or their product with a weight,
    which is computed for all steps at once before the loop."""

    source: int
    weight: Weight | None
    width: int
    depth: int  # columns of the source


@dataclass(frozen=True)
class Recurrence:
    """A cell, split by what depends on the carry (BPPSA section 3.1 needs only the body's J^T)."""

    hoisted: fx.Graph | None  # (x rows..., captured...) -> (rows..., params...); None: nothing to do
    body: fx.Graph  # outputs: (next carries, outputs); roles "carry", "stream", "param"
    tail: fx.Graph | None  # (outputs..., rows..., params...) -> ys; None: the ys are the outputs
    streams: tuple[Stream, ...]
    carries: tuple[int, ...]  # widths
    outputs: tuple[int, ...]  # widths
    checks: int = 0  # so many of the outputs, the last, are finite where PyTorch raises no error and gives the same
    heads: int = 1  # so many rows of the body, carries, streams and outputs are one of the batch, one after the other

    @property
    def next_carries(self) -> tuple[fx.Node, ...]:
        return output_of(self.body)[0]

    @property
    def output_nodes(self) -> tuple[fx.Node, ...]:
        return output_of(self.body)[1]

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Each output's shape, without the rows of the batch."""
        shapes = [node.meta["val"].shape for node in self.output_nodes]
        return [tuple(s[1:]) if self.heads == 1 else (s[1] * self.heads, *s[2:]) for s in shapes]

    @property
    def moving(self) -> int:
        """How many numbers of a row change from step to step: others are carried as they are, as a memory is."""
        pairs = enumerate(zip(self.carries, self.next_carries, strict=True))
        return sum(width for i, (width, node) in pairs if node.meta.get("role") != Role("carry", i))


@dataclass(frozen=True)
class OuterGradient:
    """A parameter's gradient as a sum over all rows and steps of (value of `left`)^T (cotangent `right`)."""

    weight: Weight
    left: fx.Node  # of the body
    right: fx.Node  # of the transposed body


@dataclass(frozen=True)
class ColumnSum:
    """A parameter's gradient as the sum over all rows and steps of the cotangent `right`."""

    param: int
    right: fx.Node


@dataclass(frozen=True)
class Transposed:
    """The body's backward: cotangents in, cotangents out, by the J^T rules. `None`: no gradient flows there."""

    graph: fx.Graph
    carries: tuple[fx.Node | None, ...]
    streams: tuple[fx.Node | None, ...]
    outers: tuple[OuterGradient, ...]
    sums: tuple[ColumnSum, ...]


@dataclass(frozen=True)
class Structure:
    """The J^T of one step as `count` dense blocks of [width, width]: count 1 is a dense J^T, width 1 a diagonal one.

    order: the places of the blocks' rows in the carry, all its leaves side by side, int64 [count, width].
    affine: a step is an affine map of the carry, so that its J^T is the same wherever it is taken.
    """

    order: torch.Tensor
    nnz: int  # entries of J^T that can be non-zero
    affine: bool = False

    @property
    def count(self) -> int:
        return self.order.shape[0]

    @property
    def width(self) -> int:
        return self.order.shape[1]

    @property
    def solves_at_once(self) -> bool:
        """Whether all states come out of one scan, to rounding: numbers that do not meet, in an affine map."""
        return self.affine and self.width == 1

    @property
    def kind(self) -> str:
        return "diagonal" if self.width == 1 else "dense" if self.count == 1 else "block-diagonal"

    def __str__(self) -> str:
        size = self.count * self.width
        blocks = f", {self.count} blocks of {self.width}" if self.kind == "block-diagonal" else ""
        return f"{self.kind} {size}x{size}{blocks}, {self.nnz} non-zeros"


@dataclass(frozen=True, eq=False)
class ChainStage:
    """x_i = f_i(x_{i-1}) of a feed-forward chain: all that lies between two tensors that every path crosses.

    nodes: on a path from `start` to `end`, in order, without `start`. reason: why its J^T is not known, so that it
    stays a VJP; None where every op has a rule. light: J^T has an entry a row, or a column, and no more.
    """

    start: fx.Node
    end: fx.Node
    nodes: tuple[fx.Node, ...]
    structure: str
    light: bool = False
    reason: Reason | None = None

    @property
    def path(self) -> str:
        """The path of the module that it ends in."""
        return self.end.meta.get("path", "")


@dataclass(frozen=True, eq=False)
class Chain:
    """A feed-forward graph as stages, from the input to the output. What comes before the first stage, or after the
    last, takes or gives several tensors and is differentiated whole. No stages: the graph is no chain."""

    graph: fx.Graph
    stages: tuple[ChainStage, ...]

    @property
    def segments(self) -> tuple[tuple[ChainStage, ...], ...]:
        """Maximal runs of stages with rules, and between them the stages without, each by itself."""
        runs: list[list[ChainStage]] = []
        for stage in self.stages:
            if runs and stage.reason is None and runs[-1][-1].reason is None:
                runs[-1].append(stage)
            else:
                runs.append([stage])
        return tuple(map(tuple, runs))


def output_of(graph: fx.Graph) -> tuple:
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def placeholders(graph: fx.Graph, kind: str) -> list[fx.Node]:
    """The placeholders of the kind that something reads."""
    return [n for n in graph.nodes if n.op == "placeholder" and n.users and n.meta["role"].kind == kind]
