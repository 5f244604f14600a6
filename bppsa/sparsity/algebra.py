"""Products and sums of transposed Jacobians: one table each over pairs of classes. Others are written out first, as
sparse or, where every entry can be non-zero, as dense.

For a chain x -> y -> z the transposed Jacobians compose in the order of the data: J^T(z/x) = J^T(y/x) @ J^T(z/y).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.sparsity import pairs
from bppsa.sparsity.operators.simple import Dense, Diagonal, Identity
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.flat import as_held, flat

PairOperation = Callable[[Any, Any], TransposedJacobian]


def compose(a: TransposedJacobian, b: TransposedJacobian) -> TransposedJacobian:
    """a @ b; a is N x K and nearer to the input, b is K x M."""
    if a.out_size != b.in_size:
        raise unfit("compose", a, b)
    a, b = in_table(a), in_table(b)
    return PRODUCT[type(a), type(b)](a, b)


def add(a: TransposedJacobian, b: TransposedJacobian) -> TransposedJacobian:
    """a + b: two branches from one input to one output."""
    if (a.in_size, a.out_size) != (b.in_size, b.out_size):
        raise unfit("add", a, b)
    a, b = in_table(a), in_table(b)
    return SUM[type(a), type(b)](a, b)


def unfit(what: str, a: TransposedJacobian, b: TransposedJacobian) -> Unsupported:
    one, other = (f"{tuple(jt.in_size)} x {tuple(jt.out_size)}" for jt in (a, b))
    return Unsupported(f"cannot {what} J^T of {one} and {other}")


def in_table(a: TransposedJacobian) -> TransposedJacobian:
    return a if isinstance(a, (Identity, Diagonal, Dense, Sparse)) else pairs.written_out(a)


def dense_product(a: TransposedJacobian, b: TransposedJacobian) -> Dense:
    left, right = a.dense(), b.dense()
    dtype = torch.promote_types(left.dtype, right.dtype)
    return Dense(left.to(dtype) @ right.to(dtype), (a.in_size, b.out_size))


def dense_sum(a: TransposedJacobian, b: TransposedJacobian) -> Dense:
    return Dense(a.dense() + b.dense(), (a.in_size, a.out_size))


def keeps_sizes(a: Identity) -> bool:
    """A reshape is an identity too, but it changes sizes and so cannot vanish from a product."""
    return a.in_size == a.out_size


def times(a: Tensor | float, b: Tensor | float) -> Tensor | float:
    """a * b without a multiplication by the number one."""
    if not isinstance(a, Tensor) and a == 1:
        return b
    return a if not isinstance(b, Tensor) and b == 1 else a * b


def diagonal_product(a: Diagonal, b: Diagonal) -> Diagonal:
    masks = [m for m in (a.mask, b.mask) if m is not None]
    mask = torch.logical_and(*masks) if len(masks) == 2 else next(iter(masks), None)
    return Diagonal(times(a.d, b.d), like=a.reference, mask=mask)


def beside(d: Tensor, dim: int) -> Tensor:
    """d [B, *n] to [B, N] with a new `dim`, to meet the rows or columns of matrices; [1, *n] meets a shared one."""
    return as_held(flat(d)).unsqueeze(dim)


def scaled(d: Diagonal, w: Tensor, dim: int) -> Tensor:
    """w [N, M] or [B, N, M] with its rows (dim -1) or its columns (dim -2) scaled and selected by d."""
    if isinstance(d.d, Tensor):
        w = w * beside(d.d, dim)
    elif d.d != 1:
        w = w * d.d
    return w if d.mask is None else torch.where(beside(d.mask, dim), w, 0.0)


def scale_rows(a: Diagonal, b: Dense) -> Dense:
    return Dense(scaled(a, b.w, -1), (a.in_size, b.out_size))


def scale_columns(a: Dense, b: Diagonal) -> Dense:
    return Dense(scaled(b, a.w, -2), (a.in_size, b.out_size))


def as_diagonal(a: Identity | Diagonal) -> Diagonal:
    return a if isinstance(a, Diagonal) else Diagonal(1.0, like=a.x)


def diagonal_sum(a: Identity | Diagonal, b: Identity | Diagonal) -> TransposedJacobian:
    if any(isinstance(op, Identity) and not keeps_sizes(op) for op in (a, b)):
        return pairs.total(Sparse.of(a), Sparse.of(b))
    a, b = as_diagonal(a), as_diagonal(b)
    if a.mask is None and b.mask is None:
        return Diagonal(a.d + b.d, like=a.reference)
    return Diagonal((a.values() + b.values()).reshape(-1, *a.in_size), like=a.reference)


def diagonal_plus_dense(a: Identity | Diagonal, b: Dense) -> TransposedJacobian:
    """Onto the diagonal of a copy: never through an N x N matrix of zeros."""
    diagonal = b.w.diagonal(0, -2, -1) + as_held(as_diagonal(a).values())
    w = b.w.to(diagonal.dtype).expand(*diagonal.shape[:-1], -1, -1)
    return Dense(torch.diagonal_scatter(w, diagonal, 0, -2, -1), (b.in_size, b.out_size))


def keep_right(a: Identity, b: Diagonal) -> TransposedJacobian:
    return b if keeps_sizes(a) else replace(Sparse.of(b), sizes=(a.in_size, b.out_size))


def keep_left(a: Diagonal, b: Identity) -> TransposedJacobian:
    return a if keeps_sizes(b) else replace(Sparse.of(a), sizes=(a.in_size, b.out_size))


PRODUCT: dict[tuple[type, type], PairOperation] = {
    (Identity, Identity): lambda a, b: Identity(a.x, b.out),
    (Identity, Diagonal): keep_right,
    (Diagonal, Identity): keep_left,
    (Identity, Dense): lambda a, b: Dense(b.w, (a.in_size, b.out_size)),
    (Dense, Identity): lambda a, b: Dense(a.w, (a.in_size, b.out_size)),
    (Diagonal, Diagonal): diagonal_product,
    (Diagonal, Dense): scale_rows,
    (Dense, Diagonal): scale_columns,
    (Dense, Dense): dense_product,
    (Identity, Sparse): lambda a, b: replace(b, sizes=(a.in_size, b.out_size)),
    (Sparse, Identity): lambda a, b: replace(a, sizes=(a.in_size, b.out_size)),
    (Diagonal, Sparse): pairs.scale_rows,
    (Sparse, Diagonal): pairs.scale_columns,
    (Sparse, Sparse): pairs.product,
    (Sparse, Dense): pairs.times_dense,
    (Dense, Sparse): dense_product,
}

SUM: dict[tuple[type, type], PairOperation] = {
    (Identity, Identity): diagonal_sum,
    (Identity, Diagonal): diagonal_sum,
    (Diagonal, Identity): diagonal_sum,
    (Diagonal, Diagonal): diagonal_sum,
    (Identity, Dense): diagonal_plus_dense,
    (Diagonal, Dense): diagonal_plus_dense,
    (Dense, Identity): lambda a, b: diagonal_plus_dense(b, a),
    (Dense, Diagonal): lambda a, b: diagonal_plus_dense(b, a),
    (Dense, Dense): dense_sum,
    (Sparse, Sparse): pairs.total,
    (Identity, Sparse): lambda a, b: pairs.total(Sparse.of(a), b),
    (Diagonal, Sparse): lambda a, b: pairs.total(Sparse.of(a), b),
    (Sparse, Identity): lambda a, b: pairs.total(a, Sparse.of(b)),
    (Sparse, Diagonal): lambda a, b: pairs.total(a, Sparse.of(b)),
    (Sparse, Dense): pairs.plus_dense,
    (Dense, Sparse): lambda a, b: pairs.plus_dense(b, a),
}
