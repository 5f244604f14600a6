"""Products and sums in which a sparse operator takes part: rows of the tables in `algebra.py`.

A diagonal factor scales the values and an identity renames the sizes; only two sparse factors need a product plan.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bppsa.sparsity.operators.simple import Dense, Diagonal
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns import union
from bppsa.sparsity.patterns.engine import engine
from bppsa.sparsity.patterns.flat import as_held, flat
from bppsa.sparsity.plans import product_plan, sum_plan


def full(a: TransposedJacobian) -> bool:
    return a.pattern.nnz == a.shape[0] * a.shape[1]


def written_out(a: TransposedJacobian) -> Sparse | Dense:
    """The values of an operator that is known by what it does, such as a convolution."""
    return Dense(a.dense(), (a.in_size, a.out_size)) if full(a) else Sparse.of(a)


def product(a: Sparse, b: Sparse) -> Sparse | Dense:
    """Dense where every entry of the product can be non-zero."""
    plan = product_plan(a.pattern, b.pattern)
    c = Sparse(engine().multiply(plan, a.entries(), b.entries()), plan.c, (a.in_size, b.out_size))
    return Dense(c.values.unflatten(-1, c.shape), c.sizes) if full(c) else c


def times_dense(a: Sparse, b: Dense) -> Dense:
    return Dense(engine().mm(a.pattern, a.entries(), b.dense()), (a.in_size, b.out_size))


def total(a: Sparse, b: Sparse) -> Sparse:
    sizes = a.in_size, a.out_size
    if a.pattern.digest == b.pattern.digest:
        return Sparse(a.entries() + b.entries(), a.pattern, sizes)
    plan = sum_plan(a.pattern, b.pattern)
    return Sparse(union.total(plan, a.entries(), b.entries()), plan.c, sizes)


def plus_dense(a: Sparse, b: Dense) -> Dense:
    """Onto a copy of the dense one."""
    at = (a.pattern.rows * a.shape[1] + a.pattern.indices).to(b.w.device)
    values, w = a.entries(), b.dense()
    dtype, lead = torch.promote_types(values.dtype, w.dtype), torch.broadcast_shapes(values.shape[:-1], w.shape[:-2])
    w = w.to(dtype).flatten(-2).expand(*lead, -1)
    w = w.index_add(-1, at, values.to(dtype).expand(*lead, -1))
    return Dense(w.unflatten(-1, a.shape), (a.in_size, a.out_size))


def scale_rows(d: Diagonal, a: Sparse) -> Sparse:
    return Sparse(scaled(d, a, rows=True), a.pattern, (d.in_size, a.out_size))


def scale_columns(a: Sparse, d: Diagonal) -> Sparse:
    return Sparse(scaled(d, a, rows=False), a.pattern, (a.in_size, d.out_size))


def scaled(d: Diagonal, a: Sparse, *, rows: bool) -> Tensor:
    """The values of `a`, times d's and selected by its mask."""
    values = a.entries()
    if isinstance(d.d, Tensor):
        values = engine().scale(a.pattern, values, as_held(flat(d.d)), rows=rows)
    elif d.d != 1:
        values = values * d.d
    if d.mask is None:
        return values
    return engine().scale(a.pattern, values, as_held(flat(d.mask)).to(values.dtype), rows=rows, select=True)
