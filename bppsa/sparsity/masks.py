"""Pruned weights: which entries of a J^T they take away."""

from __future__ import annotations

import functools
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
        return Sparse(values, pattern_of(mask), (operator.in_size, operator.out_size))
    return operator


@functools.lru_cache(maxsize=256)  # by identity, which is what a tensor is compared by
def pattern_of(mask: Tensor) -> Pattern:
    return Pattern.from_mask(mask)
