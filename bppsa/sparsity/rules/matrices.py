"""Linear algebra on a matrix of each row, [B, n, n]: J^T in products of what the op gave."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules import matrix_ops as ops
from bppsa.sparsity.rules.registry import rule


def product(*factors: Tensor) -> Tensor:
    """The product of matrices [B, n, m], as sums of products, for which there is a kernel."""
    first, *others = factors
    for other in others:
        first = (first.unsqueeze(3) * other.unsqueeze(1)).sum(2)
    return first


def turned(a: Tensor) -> Tensor:
    return a.transpose(1, 2)


def lower(x: Tensor, eye: Tensor, below: Tensor, diagonal: float = 1.0) -> Tensor:
    """The lower triangle, its diagonal times a number."""
    return torch.where(below, x, torch.where(eye, x if diagonal == 1.0 else x * diagonal, 0.0))


def full(a: Tensor, out: Tensor, vjp: Callable[[Tensor], Tensor]) -> Implicit:
    """Every entry of what comes out depends on every entry of the matrix."""
    return Implicit(a, out, vjp, lambda: Pattern.dense(a.shape[1:].numel(), out.shape[1:].numel()))


def places(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(k, l) of entries of the matrix, (i, j) of those of what comes out."""
    n = torch.arange(a.shape[-1])
    return n[:, None, None, None], n[:, None, None], n[:, None], n


@rule(ops.INVERSE)
def inverse(a: Tensor, eye: Tensor, *, out: Tensor) -> tuple[Implicit, None]:
    return full(a, out, lambda g: -product(turned(out), g, turned(out))), None


@rule(ops.LOWER_INVERSE)
def lower_inverse(a: Tensor, eye: Tensor, below: Tensor, *, out: Tensor) -> tuple[Implicit, None, None]:
    def links() -> Pattern:
        k, m, i, j = places(a)
        return Pattern.from_mask(((i >= k) & (k >= m) & (m >= j)).flatten(0, 1).flatten(1))

    def vjp(g: Tensor) -> Tensor:
        return lower(-product(turned(out), g, turned(out)), eye, below)

    return Implicit(a, out, vjp, links), None, None


@rule(ops.CHOLESKY)
def cholesky(a: Tensor, eye: Tensor, below: Tensor, *, out: Tensor) -> tuple[Implicit, None, None]:
    """The gradient is symmetric, as PyTorch's is, although one triangle is read."""

    def links() -> Pattern:
        k, m, i, j = places(a)
        within = ((k <= i) & (m <= j)) | ((k <= j) & (m <= i))
        return Pattern.from_mask((within & (i >= j)).flatten(0, 1).flatten(1))

    def vjp(g: Tensor) -> Tensor:
        inverse = ops.as_one(ops.LOWER_INVERSE, out, eye, below)
        half = lower(product(turned(out), g), eye, below, 0.5)
        half = product(turned(inverse), half, inverse)
        return (half + turned(half)) * 0.5

    return Implicit(a, out, vjp, links), None, None


@rule(ops.GRAM_INVERSE)
def gram_inverse(a: Tensor, eye: Tensor, *, out: Tensor) -> tuple[Implicit, None]:
    """J^T of (a a^T)^-1, a lower triangular; the gradient is that of all entries of a, as PyTorch's is."""
    return full(a, out, lambda g: -product(out, g + turned(g), out, a)), None


@rule(ops.DETERMINANT)
def determinant(a: Tensor, inverse: Tensor, *, out: Tensor) -> tuple[Implicit, None]:
    return full(a, out, lambda g: (g * out).unsqueeze(1).unsqueeze(2) * turned(inverse)), None


@rule(ops.LOG_DETERMINANT)
def log_determinant(a: Tensor, inverse: Tensor, *, out: Tensor) -> tuple[Implicit, None]:
    return full(a, out, lambda g: g.unsqueeze(1).unsqueeze(2) * turned(inverse)), None


@rule(ops.SIGN)
def sign(a: Tensor, inverse: Tensor, *, out: Tensor) -> tuple[None, None]:
    return None, None
