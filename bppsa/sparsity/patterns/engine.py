"""Who does the arithmetic of sparse operators: ATen ops, or the kernels that `runtime/sparse.py` brings.

This room may not import kernels, which are made from what is here; so a driver that has some installs them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bppsa.sparsity.patterns import product
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.product import ProductPlan


class Engine(Protocol):
    def symbolic(self, a: Pattern, b: Pattern) -> ProductPlan:
        """The plan of A B."""

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
        """The values of C: [E] where the batch shares those of A and B, else [B, E]."""

    def scale(self, pattern: Pattern, values: Tensor, d: Tensor, *, rows: bool, select: bool = False) -> Tensor:
        """Values [E] or [B, E] times that number of d, [n] or [B, n], which belongs to the row of each, or its column.
        select: where d is zero so is the result, whatever the value is."""

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
        """J^T g for every row of the batch: values [E] or [B, E], g [B, M] to [B, N]."""

    def mm(self, pattern: Pattern, values: Tensor, w: Tensor) -> Tensor:
        """J^T w: values [E] or [B, E], w [M, P] or [B, M, P], to [N, P] or [B, N, P]."""

    def chosen(self, grid: Pattern, place: Tensor, dtype: torch.dtype) -> Tensor:
        """What the windows of a grid took: place [B, C, *windows], int64, to [B, C * E]. Entry (p, w) of the grid,
        [P, W], is 1 where window w took place p, which must be one of its own, else 0."""


class Aten:
    """On any device, differentiable, and recorded by tracers as what it is."""

    def symbolic(self, a: Pattern, b: Pattern) -> ProductPlan:
        return product.symbolic(a, b)

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
        return product.multiply(plan, a, b)

    def scale(self, pattern: Pattern, values: Tensor, d: Tensor, *, rows: bool, select: bool = False) -> Tensor:
        factors = d[..., (pattern.rows if rows else pattern.indices).to(d.device)]
        return torch.where(factors != 0, values * factors, 0.0) if select else values * factors

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
        rows, columns = pattern.rows.to(g.device), pattern.indices.to(g.device)
        terms = g.index_select(1, columns) * values
        return terms.new_zeros(len(terms), pattern.shape[0]).index_add(1, rows, terms)

    def mm(self, pattern: Pattern, values: Tensor, w: Tensor) -> Tensor:
        return pattern.spread(values) @ w

    def chosen(self, grid: Pattern, place: Tensor, dtype: torch.dtype) -> Tensor:
        rows, columns = grid.rows.to(place.device), grid.indices.to(place.device)
        return (place.flatten(2).index_select(2, columns) == rows).to(dtype).flatten(1)


ATEN = Aten()
_installed: list[Engine] = [ATEN]


def engine() -> Engine:
    return _installed[-1]


def install(new: Engine) -> None:
    """Has the whole process use another engine."""
    _installed[:] = [new]
