"""Matrix products with a weight: x [B, K] @ w [K, M]. J^T is the weight itself, held once for the batch; of several
places in a sample each has it."""

from __future__ import annotations

from torch import Tensor, ops

from bppsa.sparsity.operators.across import AcrossRows, Outer
from bppsa.sparsity.operators.repeated import Repeated
from bppsa.sparsity.operators.simple import Dense, Diagonal, Identity
from bppsa.sparsity.operators.transposed import TransposedJacobian
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


@rule(aten.linear.default)
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None = None, *, out: Tensor
) -> tuple[Repeated, AcrossRows] | tuple[Repeated, AcrossRows, AcrossRows]:
    """x [B, *t, K] @ w^T, w [M, K]."""

    def of_weight(g: Tensor) -> Tensor:
        return g.flatten(0, -2).t().mm(x.flatten(0, -2))

    of_input, of_weights = Repeated(Dense(w.t()), x.shape[1:-1]), AcrossRows(of_weight)
    if bias is None:
        return of_input, of_weights
    return of_input, of_weights, AcrossRows(lambda g: g.flatten(0, -2).sum(0))


@rule(aten.t.default)
def t(w: Tensor, *, out: Tensor) -> tuple[AcrossRows]:
    return (AcrossRows(lambda g: g.t()),)
