"""How many entries a J^T can have at most, without writing down a pattern that may be huge."""

from __future__ import annotations

import math
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


def of_convolution(op: Convolution) -> int:
    """The entries of each dimension's windows multiply, and so do channels (BPPSA Table 1, exact)."""
    grid, windows = (op.out_size, op.in_size) if op.transposed else (op.in_size, op.out_size)
    lines = [op.windows.line(d, *sizes)[0].nnz for d, sizes in enumerate(zip(grid[1:], windows[1:], strict=True))]
    return op.in_size[0] * op.out_size[0] // op.groups * math.prod(lines)


COUNTS: dict[type, Callable[[Any], int]] = {
    **dict.fromkeys((Identity, Diagonal), lambda op: op.shape[0]),
    Dense: lambda op: math.prod(op.shape),
    **dict.fromkeys((Sparse, Repeated), lambda op: op.nnz),
    Convolution: lambda op: of_convolution(op) if op.mask is None else op.nnz,
}
