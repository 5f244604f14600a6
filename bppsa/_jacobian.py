"""Transposed Jacobians of layers and networks: capture -> rules -> operator."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, fx

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.capture import record
from bppsa.fxpasses.network import edges, evaluate, single
from bppsa.runtime.sparse import Kernels
from bppsa.sparsity import Identity, TransposedJacobian
from bppsa.sparsity.engine import install

install(Kernels())


def transposed_jacobian(model: Callable[[Tensor], Tensor], x: Tensor) -> TransposedJacobian:
    """J^T of a layer at x [B, *n]: an operator N x M for each row of the batch.

    It offers `shape`, `nnz`, `pattern` (CSR: `indptr`, `indices`), `mv`, `mm`, `entries`, `dense` and `to_sparse_csr`.
    """
    recording = record(model, (x,), decompose={})
    end = recording.result
    if not isinstance(end, fx.Node):
        raise Unsupported(Reason("returns more than one tensor", mend="wrap the model in a function that picks one"))
    if end is recording.arguments[0]:
        return Identity(x, x)
    found = single(edges(recording, end, evaluate(recording, x)))
    if found is None:
        raise Unsupported(Reason("several ops", mend="take the layers one by one"))
    return found
