"""Matrix products of rows with a weight: x [B, K] @ w [K, M]. J^T is the weight itself, held once for the batch."""

from __future__ import annotations

from torch import Tensor, ops

from bppsa.sparsity.operators import AcrossRows, Dense, Diagonal, Identity, Outer, TransposedJacobian
from bppsa.sparsity.rules.registry import rule

aten = ops.aten


@rule(aten.mm.default)
def mm(x: Tensor, w: Tensor, *, out: Tensor) -> tuple[Dense, Outer]:
    return Dense(w), Outer(x)


@rule(aten.addmm.default)
def addmm(
    bias: Tensor, x: Tensor, w: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor
) -> tuple[TransposedJacobian | AcrossRows, Dense, Outer]:
    """bias: [M], [1, M], or a row for each of x, [B, M]."""
    x, w = (x, w) if alpha == 1 else (x * alpha, w * alpha)
    return added(bias, beta, out), Dense(w), Outer(x)


def added(bias: Tensor, beta: float, out: Tensor) -> TransposedJacobian | AcrossRows:
    if bias.shape != out.shape:
        return AcrossRows(lambda g: (g if beta == 1 else g * beta).sum_to_size(bias.shape))
    return Identity(bias, out) if beta == 1 else Diagonal(beta, like=bias)


@rule(aten.t.default)
def t(w: Tensor, *, out: Tensor) -> tuple[AcrossRows]:
    return (AcrossRows(lambda g: g.t()),)
