"""Products and sums in which a sparse operator takes part: rows of the tables in `algebra.py`.

A diagonal factor scales the values and an identity renames the sizes; only two sparse factors need a product plan.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bppsa.sparsity import union
from bppsa.sparsity.engine import engine
from bppsa.sparsity.operators import Dense, Diagonal, Identity, Sparse
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.plans import product_plan, sum_plan


def as_sparse(a: Identity | Diagonal) -> Sparse:
    n = a.shape[0]
    values = a.values() if isinstance(a, Diagonal) else a.x.new_ones(1, n)
    return Sparse(values[0] if len(values) == 1 else values, Pattern.identity(n), (a.in_size, a.out_size))


def sparse_product(a: Sparse, b: Sparse) -> Sparse | Dense:
    """Dense where every entry of the product can be non-zero."""
    plan = product_plan(a.links, b.links)
    values, sizes = engine().multiply(plan, a.values, b.values), (a.in_size, b.out_size)
    full = plan.c.nnz == plan.c.shape[0] * plan.c.shape[1]
    return Dense(values.unflatten(-1, plan.c.shape), sizes) if full else Sparse(values, plan.c, sizes)


def sparse_sum(a: Sparse, b: Sparse) -> Sparse:
    if a.links.digest == b.links.digest:
        return Sparse(a.values + b.values, a.links, (a.in_size, a.out_size))
    plan = sum_plan(a.links, b.links)
    return Sparse(union.total(plan, a.values, b.values), plan.c, (a.in_size, a.out_size))


def sparse_plus_dense(a: Sparse, b: Dense) -> Dense:
    """Onto a copy of the dense one."""
    at = (a.links.rows * a.links.shape[1] + a.links.indices).to(b.w.device)
    dtype = torch.promote_types(a.values.dtype, b.w.dtype)
    lead = torch.broadcast_shapes(a.values.shape[:-1], b.w.shape[:-2])
    flat = b.w.to(dtype).flatten(-2).expand(*lead, -1)
    total = flat.index_add(-1, at, a.values.to(dtype).expand(*lead, -1))
    return Dense(total.unflatten(-1, a.links.shape), (a.in_size, a.out_size))


def scale_sparse_rows(d: Diagonal, a: Sparse) -> Sparse:
    return Sparse(scaled(d, a, rows=True), a.links, (d.in_size, a.out_size))


def scale_sparse_columns(a: Sparse, d: Diagonal) -> Sparse:
    return Sparse(scaled(d, a, rows=False), a.links, (a.in_size, d.out_size))


def scaled(d: Diagonal, a: Sparse, *, rows: bool) -> Tensor:
    """The values of `a`, times d's and selected by its mask."""
    values = a.values
    if isinstance(d.d, Tensor):
        values = engine().scale(a.links, values, shared(d.d), rows=rows)
    elif d.d != 1:
        values = values * d.d
    if d.mask is None:
        return values
    return engine().scale(a.links, values, shared(d.mask).to(values.dtype), rows=rows, select=True)


def shared(d: Tensor) -> Tensor:
    """d [B, *n] as [B, N], or as [N] where the batch shares it."""
    flat = d.flatten(1)
    return flat[0] if len(flat) == 1 else flat
