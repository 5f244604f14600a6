"""Linear algebra on matrices [B, n, n] that wait for the carry: in products, and in ops on a matrix of each row.

Solving multiplies with the inverse, which the backward reads again. Where PyTorch raises an error for a matrix, or
tells of it, the call is run by PyTorch: here all is well with every matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import ALONG_BATCH
from bppsa.errors import Unsupported
from bppsa.sparsity.rules import matrix_ops as ops

aten = torch.ops.aten
MOST = 8  # n: a step is one group of n rows, each with a line of code, for each of n columns


def identity(a: Tensor) -> Tensor:
    n = torch.arange(a.shape[-1])
    return n[:, None] == n


def below(a: Tensor) -> Tensor:
    n = torch.arange(a.shape[-1])
    return n[:, None] > n


def check(a: Tensor) -> None:
    if a.dim() > 3:
        raise Unsupported(f"several matrices for each row, {list(a.shape)}", mend="one [B, n, n] is handled")
    if a.shape[-1] > MOST:
        raise Unsupported(f"a matrix of {a.shape[-1]} x {a.shape[-1]}, larger than {MOST} x {MOST}")


def product(a: Tensor, b: Tensor) -> Tensor:
    """[..., n, m] times [..., m, k]"""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def inverse_of(a: Tensor) -> Tensor:
    """The inverse; PyTorch's own where one matrix is for all rows."""
    if a.dim() == 2:
        return torch.linalg.inv(a)
    check(a)
    return ops.as_one(ops.INVERSE, a, identity(a))


def well(a: Tensor) -> Tensor:
    """What PyTorch tells of each matrix: 0."""
    return torch.zeros_like(a.select(-1, 0).select(-1, 0), dtype=torch.int32)


def inv(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return inverse_of(a), well(a)


def is_vector(a: Tensor, b: Tensor) -> bool:
    """Whether PyTorch takes the right side for vectors."""
    return b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])


def solve(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, ...]:
    inverse = inverse_of(a)
    if is_vector(a, b):
        solved = product(inverse, b.unsqueeze(-1)).squeeze(-1)
    else:
        solved = product(inverse, b) if left else product(b, inverse)
    return solved, a, well(a), well(a)


def cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    check(a)
    factor = ops.as_one(ops.CHOLESKY, a.mT if upper else a, identity(a), below(a))
    return (factor.mT if upper else factor), well(a)


def lower_inverse(a: Tensor, *, upper: bool, unit: bool) -> Tensor:
    """The inverse of a triangle. unit: its diagonal is of ones, whatever stands there."""
    check(a)
    eye = identity(a)
    a = a.mT if upper else a
    inverse = ops.as_one(ops.LOWER_INVERSE, torch.where(eye, 1.0, a) if unit else a, eye, below(a))
    return inverse.mT if upper else inverse


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    inverse = lower_inverse(a, upper=upper, unit=unitriangular)
    return product(inverse, b) if left else product(b, inverse)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    check(factor)
    return ops.as_one(ops.GRAM_INVERSE, factor.mT if upper else factor, identity(factor))


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    return product(cholesky_inverse(factor, upper), b)


def det(a: Tensor) -> tuple[Tensor, ...]:
    return ops.as_one(ops.DETERMINANT, a, inverse_of(a)), a, well(a)


def slogdet(a: Tensor) -> tuple[Tensor, ...]:
    inverse = inverse_of(a)
    return *(ops.as_one(op, a, inverse) for op in (ops.SIGN, ops.LOG_DETERMINANT)), a, well(a)


# Parts of matrices ---------------------------------------------------------------------------------------------------


def diagonal(x: Tensor, offset: int = 0, first: int = 0, second: int = 1) -> Tensor:
    first, second = first % x.dim(), second % x.dim()
    if 0 in (first, second):
        raise Unsupported(ALONG_BATCH)
    rest = [d for d in range(x.dim()) if d not in (first, second)]
    x = x.permute([*rest, first, second])
    x = x[..., max(-offset, 0) :, max(offset, 0) :]
    count = min(x.shape[-2:])
    return x[..., :count, :count].reshape(*x.shape[:-2], count * count)[..., :: count + 1]


def diag_embed(x: Tensor, offset: int = 0, first: int = -2, second: int = -1) -> Tensor:
    if x.dim() < 2:
        raise Unsupported(ALONG_BATCH)
    if offset or (first, second) not in ((-2, -1), (x.dim() - 1, x.dim())):
        raise Unsupported("puts a diagonal elsewhere than in the last two dimensions, or beside their middle")
    return torch.where(identity(x), x.unsqueeze(-1), 0.0)


def triangle(upper: bool) -> Callable[..., Tensor]:
    def part(x: Tensor, diagonal: int = 0) -> Tensor:
        if x.dim() < 3:
            raise Unsupported(ALONG_BATCH)
        apart = torch.arange(x.shape[-1]) - torch.arange(x.shape[-2])[:, None]
        return torch.where(apart >= diagonal if upper else apart <= diagonal, x, 0.0)

    return part


# Linear algebra, which treats the matrices of a batch alike however many there are.
LINEAR: dict[Any, Callable[..., Any]] = {
    aten.linalg_inv_ex.default: inv,
    aten._linalg_solve_ex.default: solve,
    aten.linalg_cholesky_ex.default: cholesky,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.cholesky_solve.default: cholesky_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
    aten._linalg_det.default: det,
    aten._linalg_slogdet.default: slogdet,
}
if hasattr(aten, "cholesky"):  # to torch 2.13
    LINEAR[aten.cholesky.default] = lambda a, upper=False: cholesky(a, upper=upper)[0]
OF_EACH_MATRIX = frozenset(LINEAR)


def treats_matrices_alike(node: fx.Node, moving: Collection[fx.Node]) -> bool:
    """Whether the op does the same if the batch of what moves is larger. Solving takes [B, n] for vectors where the
    matrices are [B, n, n], and for a matrix elsewhere."""
    deep = all(arg.meta["val"].dim() > 2 for arg in moving)
    if node.target is not aten._linalg_solve_ex.default:
        return deep
    a, b = (arg.meta["val"] for arg in node.args[:2])
    if is_vector(a, b):
        return all(arg in moving for arg in node.args[:2])
    return deep and (b.dim() != 2 or b.shape[-1] != a.shape[-1])


EXPANSIONS: dict[Any, Callable[..., Any]] = {
    **LINEAR,
    aten.diagonal.default: diagonal,
    aten.diag_embed.default: diag_embed,
    aten.tril.default: triangle(upper=False),
    aten.triu.default: triangle(upper=True),
}
