"""Ops that fold a value along some of its dimensions, in terms of folds and expressions, numerically as PyTorch's: the
maximum is taken off before exponentials, the mean before squares.

They stay one op until here, so that their J^T rules are theirs and not those of their parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from bppsa.codegen.language.expr import Expr, Shape
from bppsa.codegen.language.ir import Reduce
from bppsa.codegen.lowering import formulas
from bppsa.codegen.lowering.lower_axes import combined, dims, folded, reduced
from bppsa.codegen.lowering.row import Row

if TYPE_CHECKING:
    from bppsa.codegen.lowering.lower import Lowering

aten = torch.ops.aten


class Folding:
    """One op's operand, and the folds and expressions of it that the op is made of."""

    def __init__(self, lowering: Lowering, node: fx.Node, position: int = 1) -> None:
        """position: of the op's argument that names dimensions."""
        self.lowering, self.sizes, self.away = lowering, dims(node.args[0]), folded(node, position)
        self.x = lowering.row(node.args[0])

    @property
    def kept(self) -> Shape:
        return tuple(1 if away else n for n, away in zip(self.sizes, self.away, strict=True))

    @property
    def count(self) -> int:
        """How many numbers become one."""
        return math.prod(n for n, away in zip(self.sizes, self.away, strict=True) if away)

    def fold(self, row: Row, reduce: Reduce) -> Row:
        return reduced(self.lowering, row, self.sizes, self.away, reduce)

    def build(self, build: Callable[..., Expr], whole: tuple[Row, ...] = (), ends: tuple[Row, ...] = ()) -> Row:
        """An expression over rows of the operand's sizes, then over folded ones."""
        given = [*((row, self.sizes) for row in whole), *((row, self.kept) for row in ends)]
        row = combined(self.lowering, build, given, self.sizes if whole else self.kept)
        assert row is not None
        return row

    def shifted(self, most: Row) -> tuple[Row, Row]:
        """e^(x - most) and its sum: at most e^0 where `most` is the largest."""
        powers = self.build(lambda x, m: formulas.exp(formulas.sub(x, m)), (self.x,), (most,))
        return powers, self.fold(powers, Reduce.ROWS)

    def length(self, row: Row, inverse: float = 1) -> Row:
        """The root of a sum of squares, of their mean with one over their number."""
        total = self.fold(self.build(formulas.square, (row,)), Reduce.ROWS)
        return self.build(lambda total: formulas.sqrt(formulas.mul(total, inverse)), (), (total,))


def total(lowering: Lowering, node: fx.Node) -> Row:
    own = Folding(lowering, node)
    return own.fold(own.x, Reduce.ROWS)


def amax(lowering: Lowering, node: fx.Node) -> Row:
    own = Folding(lowering, node)
    return own.fold(own.x, Reduce.MAX)


def amin(lowering: Lowering, node: fx.Node) -> Row:
    own = Folding(lowering, node)
    most = own.fold(own.build(formulas.neg, (own.x,)), Reduce.MAX)
    return own.build(formulas.neg, (), (most,))


def softmax(lowering: Lowering, node: fx.Node) -> Row:
    own = Folding(lowering, node)
    powers, total = own.shifted(own.fold(own.x, Reduce.MAX))
    return own.build(formulas.div, (powers,), (total,))


def log_softmax(lowering: Lowering, node: fx.Node) -> Row:
    own = Folding(lowering, node)
    most = own.fold(own.x, Reduce.MAX)
    _, total = own.shifted(most)
    return own.build(lambda x, m, s: formulas.sub(formulas.sub(x, m), formulas.log(s)), (own.x,), (most, total))


def logsumexp(lowering: Lowering, node: fx.Node) -> Row:
    """Where the largest is infinite it says all, and nothing may be subtracted from itself."""
    own = Folding(lowering, node)
    most = own.build(
        lambda m: formulas.where(formulas.eq(formulas.absolute(m), math.inf), 0.0, m),
        (),
        (own.fold(own.x, Reduce.MAX),),
    )
    _, total = own.shifted(most)
    return own.build(lambda s, m: formulas.add(formulas.log(s), m), (), (total, most))


def vector_norm(lowering: Lowering, node: fx.Node) -> Row:
    """The norm of order 2; other orders have no J^T rule."""
    own = Folding(lowering, node, 2)
    return own.length(own.x)


def deviation(lowering: Lowering, node: fx.Node) -> Row:
    own, correction = Folding(lowering, node), node.kwargs.get("correction", 1)
    freedom = own.count - (1 if correction is None else correction)
    total = own.fold(own.x, Reduce.ROWS)
    centred = own.build(lambda x, s: formulas.sub(x, formulas.mul(s, 1 / own.count)), (own.x,), (total,))
    return own.length(centred, 1 / freedom if freedom > 0 else math.inf)


FOLDS: dict[Any, Callable[[Lowering, fx.Node], Row]] = {
    aten.sum.dim_IntList: total,
    aten.amax.default: amax,
    aten.amin.default: amin,
    aten._softmax.default: softmax,
    aten._log_softmax.default: log_softmax,
    aten.logsumexp.default: logsumexp,
    aten.linalg_vector_norm.default: vector_norm,
    aten.std.correction: deviation,
}
