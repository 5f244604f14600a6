"""Pruned weights: which entries of a J^T they take away."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bppsa.sparsity.convolution import Convolution
from bppsa.sparsity.operators import Dense, TransposedJacobian
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.sparse import Sparse


def pruned(operator: TransposedJacobian, mask: Tensor) -> TransposedJacobian:
    """The operator of a product with a weight of which `mask`, bool and of the weight's shape, tells what is kept."""
    if isinstance(operator, Convolution):
        return replace(operator, mask=mask)
    if isinstance(operator, Dense):  # the weight itself, [N, M]
        values = operator.w[mask]  # row by row
        return Sparse(values, Pattern.from_mask(mask), (operator.in_size, operator.out_size))
    return operator
