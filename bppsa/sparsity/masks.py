"""What pruning does to a J^T: the entries that read a pruned weight are not in its pattern."""

from __future__ import annotations

import functools
from dataclasses import replace

from torch import Tensor

from bppsa.sparsity.convolution import Convolution
from bppsa.sparsity.operators import Dense, TransposedJacobian
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.sparse import Sparse

DENSEST = 0.25  # kept of a matrix, above which a dense product is faster than a sparse one


def masked(operator: TransposedJacobian, mask: Tensor) -> TransposedJacobian:
    """mask: bool, True where a weight is kept; shaped as the weight of a convolution, or as J^T of a matrix product."""
    if isinstance(operator, Convolution):
        return replace(operator, mask=mask)
    if isinstance(operator, Dense) and operator.w.shape == mask.shape and kept(mask) <= DENSEST:
        return Sparse(operator.w[mask], pattern_of(mask), (operator.in_size, operator.out_size))
    return operator


@functools.lru_cache(maxsize=256)  # tensors are equal where they are the same
def pattern_of(mask: Tensor) -> Pattern:
    return Pattern.from_mask(mask)


@functools.lru_cache(maxsize=256)
def kept(mask: Tensor) -> float:
    return float(mask.float().mean())
