"""Pruned weights: which entries of a J^T they take away."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from bppsa.sparsity.operators.convolution import Convolution
from bppsa.sparsity.operators.repeated import Repeated
from bppsa.sparsity.operators.simple import Dense
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.pattern import Pattern


def pruned(operator: TransposedJacobian, mask: Tensor) -> TransposedJacobian:
    """The operator of a product with a weight of which `mask`, bool and of the weight's shape, tells what is kept."""
    if isinstance(operator, Convolution):
        return replace(operator, mask=mask)
    if isinstance(operator, Dense):  # the weight itself, [N, M]
        values = operator.w[mask]  # row by row
        return Sparse(values, pattern_of(mask), (operator.in_size, operator.out_size))
    if isinstance(operator, Repeated):  # of a weight [M, K]
        return replace(operator, block=pruned(operator.block, transposed(mask)))
    return operator


# Patterns by the identity of their masks, as long as these live; whoever holds a pattern keeps it as it is.
_patterns: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_transposed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def pattern_of(mask: Tensor) -> Pattern:
    found: Pattern | None = _patterns.get(mask)
    if found is None:
        found = _patterns[mask] = Pattern.from_mask(mask)
    return found


def transposed(mask: Tensor) -> Tensor:
    found: Tensor | None = _transposed.get(mask)
    if found is None:
        found = _transposed[mask] = mask.t().contiguous()
    return found
