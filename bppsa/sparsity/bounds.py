"""How many entries a J^T can have at most, without writing down a pattern that may be huge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bppsa.sparsity.operators.convolution import Convolution
from bppsa.sparsity.operators.repeated import Repeated
from bppsa.sparsity.operators.simple import Dense, Diagonal, Identity
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian

LARGEST = 2**22  # N + M, up to which the pattern of moves, pools and the like is built for its count


def most_entries(operator: TransposedJacobian) -> int:
    """At least `operator.nnz`, and equal to it but for blocks, which are counted as if they were full, and giants."""
    known = COUNTS.get(type(operator))
    if known is not None:
        return known(operator)
    n, m = operator.shape
    return operator.nnz if n + m <= LARGEST and operator.structure == "sparse" else n * m


COUNTS: dict[type, Callable[[Any], int]] = {
    **dict.fromkeys((Identity, Diagonal), lambda op: op.shape[0]),
    **dict.fromkeys((Dense, Sparse, Repeated, Convolution), lambda op: op.nnz),
}
