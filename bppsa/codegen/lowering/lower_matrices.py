"""Linear algebra on a matrix [n, n] of each row, as steps on rows of matrices: each step is one group of n columns.

What cannot be relied on becomes NaN, and is looked for after the sweep: a pivot that is rounding alone, of a
matrix that is singular or not positive definite. Rows are selected, never multiplied by zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from bppsa.codegen.language.expr import Access, Expr, Shape, load
from bppsa.codegen.language.ir import Reduce
from bppsa.codegen.lowering import formulas, lower_axes
from bppsa.codegen.lowering.roots import Root
from bppsa.codegen.lowering.row import Row, RowSegment, leaf
from bppsa.sparsity.rules import matrix_ops as ops

if TYPE_CHECKING:
    from bppsa.codegen.lowering.lower import Lowering

ROUNDING = 4  # of a pivot, in units of rounding times n


@dataclass(frozen=True)
class Matrix:
    """[n, n] where it stands in memory, row-major."""

    access: Access
    n: int

    def row(self, i: int) -> Expr:
        return load(replace(self.access, column=self.access.column + i * self.n, broadcast=self.n == 1))

    def entry(self, i: int, j: int) -> Expr:
        return load(replace(self.access, column=self.access.column + i * self.n + j, broadcast=True))

    @property
    def value(self) -> Row:
        return leaf(self.access, self.n * self.n)


@dataclass(frozen=True)
class Pivot:
    """place: the row where the largest of a column stands. value: that number, NaN where it is rounding alone."""

    place: Expr
    value: Expr


def matrix(lowering: Lowering, node: fx.Node) -> Matrix:
    return Matrix(lowering.materialise(node), node.meta["val"].shape[-1])


def stored(lowering: Lowering, n: int, rows: Mapping[int, Expr]) -> Matrix:
    """A matrix with the given rows stored; nobody reads the others."""
    access = Access(lowering.new_scratch(n * n))
    lowering.roots += [Root(replace(access, column=i * n), row, n) for i, row in rows.items()]
    return Matrix(access, n)


def rounding_of(node: fx.Node) -> float:
    value = node.meta["val"]
    return float(ROUNDING * value.shape[-1] * torch.finfo(value.dtype).eps)


# The inverse, by Gauss and Jordan's steps with partial pivoting -------------------------------------------------------


def inverse(lowering: Lowering, node: fx.Node) -> Row:
    a, eye = node.args
    left, right = matrix(lowering, a), matrix(lowering, eye)
    pivots = []
    for k, least in enumerate(least_pivots(lowering, a)):
        pivot = pivot_of(left, k, least)
        pivots.append(pivot)
        right = stepped(lowering, right, left, pivot, k)
        left = stepped(lowering, left, left, pivot, k) if k < left.n - 1 else left
    lowering.pivots[node] = pivots
    return right.value


def least_pivots(lowering: Lowering, a: fx.Node) -> list[Expr]:
    """The least pivot of each column: a smaller one is rounding alone."""
    sizes, eps = lower_axes.dims(a), rounding_of(a)
    size = lower_axes.combined(lowering, formulas.absolute, [(lowering.row(a), sizes)], sizes)
    assert size is not None
    most = lower_axes.reduced(lowering, size, sizes, (True, False), Reduce.MAX)
    access = lowering.in_scratch(most) if most.in_memory is None else most.in_memory
    n = sizes[0]
    return [formulas.mul(load(replace(access, column=access.column + k, broadcast=True)), eps) for k in range(n)]


def pivot_of(a: Matrix, k: int, least: Expr) -> Pivot:
    place, value = formulas.expr(k), a.entry(k, k)
    most = formulas.absolute(value)
    for i in range(k + 1, a.n):
        entry = a.entry(i, k)
        size = formulas.absolute(entry)
        larger = formulas.lt(most, size)
        either = (i, place), (entry, value), (size, most)
        place, value, most = (formulas.where(larger, new, old) for new, old in either)
    return Pivot(place, formulas.where(formulas.lt(least, most), value, math.nan))


def stepped(lowering: Lowering, half: Matrix, column: Matrix, pivot: Pivot, k: int) -> Matrix:
    """One half of [A | I] with the pivot's row in row k, divided by the pivot and taken off all others."""
    chosen, later = half.row(k), range(k + 1, half.n)
    here = {i: formulas.eq(pivot.place, i) for i in later}
    for i in later:
        chosen = formulas.where(here[i], half.row(i), chosen)
    scaled = formulas.div(chosen, pivot.value)

    def other(i: int) -> Expr:
        own, factor = half.row(i), column.entry(i, k)
        if i > k:
            own = formulas.where(here[i], half.row(k), own)
            factor = formulas.where(here[i], column.entry(k, k), factor)
        return formulas.sub(own, formulas.mul(factor, scaled))

    return stored(lowering, half.n, {i: scaled if i == k else other(i) for i in range(half.n)})


# Determinants, by the pivots of the inverse ---------------------------------------------------------------------------


def determinant(factor: Callable[[Expr], Expr], joined: Callable[[Expr, Expr], Expr], signed: bool) -> Any:
    """factor: what a pivot contributes. signed: whether an exchange of rows turns its sign."""

    def lowered(lowering: Lowering, node: fx.Node) -> Row:
        factors = []
        for k, pivot in enumerate(lowering.pivots[node.args[1]]):
            own = factor(pivot.value)
            factors.append(formulas.where(formulas.eq(pivot.place, k), own, formulas.neg(own)) if signed else own)
        return lowering.one_column(RowSegment(1, functools.reduce(joined, factors)))

    return lowered


# Of triangles ---------------------------------------------------------------------------------------------------------


def cholesky(lowering: Lowering, node: fx.Node) -> Row:
    """Row k of the upper factor, l^T, divides by the root of its pivot and is taken off the rows behind it."""
    given, n = node.args[0], node.meta["val"].shape[-1]
    sizes, eps = lower_axes.dims(given), rounding_of(given)
    upper, below = turned(lowering, lowering.row(given), sizes), matrix(lowering, node.args[2])
    rest, rows = Matrix(lowering.in_scratch(upper), n), dict[int, Expr]()
    first = rest
    for k in range(n):
        pivot = rest.entry(k, k)
        sound = formulas.lt(formulas.mul(first.entry(k, k), eps), pivot)
        root = formulas.sqrt(formulas.where(sound, pivot, math.nan))
        row = formulas.div(rest.row(k), root)
        rows[k] = formulas.where(below.row(k), 0.0, row)
        if k < n - 1:
            factors = {i: formulas.div(rest.entry(k, i), root) for i in range(k + 1, n)}
            rest = stored(lowering, n, {i: formulas.sub(rest.row(i), formulas.mul(f, row)) for i, f in factors.items()})
    return turned(lowering, stored(lowering, n, rows).value, sizes)


def turned(lowering: Lowering, row: Row, sizes: Shape) -> Row:
    segment = lower_axes.along(lowering, row, sizes)
    first, second = lower_axes.by_dim(segment, sizes)
    return Row((lower_axes.picked(segment, [*second, *first]),))


def lower_inverse(lowering: Lowering, node: fx.Node) -> Row:
    return substituted(lowering, *node.args[:2]).value


def substituted(lowering: Lowering, a: fx.Node, eye: fx.Node) -> Matrix:
    """Row i of the inverse is what is left of the identity's once the rows before it are taken off."""
    given, unit = matrix(lowering, a), matrix(lowering, eye)
    rows = dict[int, Expr]()
    for i in range(given.n):
        left = unit.row(i)
        for j, row in rows.items():
            left = formulas.sub(left, formulas.mul(given.entry(i, j), row))
        rows[i] = formulas.div(left, given.entry(i, i))
    return stored(lowering, given.n, rows)


def gram_inverse(lowering: Lowering, node: fx.Node) -> Row:
    """The inverse of a a^T is w^T w, w the inverse of a."""
    inverse = substituted(lowering, *node.args)

    def row(i: int) -> Expr:
        terms = [formulas.mul(inverse.entry(k, i), inverse.row(k)) for k in range(i, inverse.n)]
        return functools.reduce(formulas.add, terms)

    return stored(lowering, inverse.n, {i: row(i) for i in range(inverse.n)}).value


MATRIX_OPS: dict[Any, Callable[[Lowering, fx.Node], Row]] = {
    ops.INVERSE: inverse,
    ops.DETERMINANT: determinant(lambda pivot: pivot, formulas.mul, True),
    ops.LOG_DETERMINANT: determinant(lambda pivot: formulas.log(formulas.absolute(pivot)), formulas.add, False),
    ops.SIGN: determinant(formulas.sign, formulas.mul, True),
    ops.CHOLESKY: cholesky,
    ops.LOWER_INVERSE: lower_inverse,
    ops.GRAM_INVERSE: gram_inverse,
}
