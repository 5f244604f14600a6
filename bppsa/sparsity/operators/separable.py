"""Linear ops that treat each channel alike and each dimension of its grid by itself: average pools and interpolations.

J^T is I (channels) times a Kronecker product of one small matrix a dimension; that matrix is found by running the op
along the dimension alone. Everything follows from shapes (BPPSA table 1: constant Jacobians).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.patterns.pattern import Pattern

# (dimension d of the grid, input with every other dimension 1) -> the op along d alone
Along = Callable[[int, Tensor], Tensor]


def separable(x: Tensor, out: Tensor, along: Along, vjp: Callable[[Tensor], Tensor], scale: float = 1.0) -> Implicit:
    """x [B, C, *grid] to out [B, C, *smaller or larger grid]; scale: a factor of all values besides."""

    def lines() -> list[Tensor]:
        return [line(d, size, x.dim() - 2, along) for d, size in enumerate(x.shape[2:])]

    def links() -> Pattern:
        return product(x.shape[1], lines())[0]

    def values() -> Tensor:
        return (product(x.shape[1], lines())[1] * scale).to(x.device, x.dtype)

    return Implicit(x, out, vjp, links, shared=True, values=values)


def line(d: int, size: int, dims: int, along: Along) -> Tensor:
    """The op along dimension d of `dims`, as a matrix [size, size after it] in float64."""
    shape = [size, 1, *(size if i == d else 1 for i in range(dims))]
    return along(d, torch.eye(size, dtype=torch.float64).reshape(shape)).reshape(size, -1)


def product(channels: int, lines: Sequence[Tensor]) -> tuple[Pattern, Tensor]:
    """The pattern and values [E] of I (x) lines[0] (x) lines[1] ..."""
    pattern, values = Pattern.identity(channels), torch.ones(channels, dtype=torch.float64)
    for matrix in lines:
        factor = Pattern.from_mask(matrix != 0)
        larger, place = Pattern.kron(pattern, factor)
        product = torch.empty(larger.nnz, dtype=torch.float64)
        product[place] = values[:, None] * matrix[factor.rows, factor.indices]
        pattern, values = larger, product
    return pattern, values
