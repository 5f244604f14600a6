"""The first two phases of a chunked scan over transposed Jacobians, in Triton: pairs of a chunk, and its boundaries.

A chunk of steps is the affine map g -> M g + v. `v` is what back-propagation itself would find, but a product of
Jacobians can leave a float's range where its product with a cotangent does not: row i of M stands for M[i] 2^e[i].
Shapes: Jacobians J^T [T, B, D, m, m] for D blocks along the diagonal, or [T, B, n] where they are diagonal.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING: tl.constexpr = tl.constexpr(-(1 << 28))  # the exponent of zero: below all others, whatever is added


@triton.jit
def exponent(x: tl.tensor) -> tl.tensor:
    """int32; of 2^e up to 2^(e + 1), e."""
    if x.dtype == tl.float64:
        e = ((x.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1023
    else:
        e = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return tl.where(x == 0.0, NOTHING, e)


@triton.jit
def scaled(x: tl.tensor, e: tl.tensor) -> tl.tensor:
    """x 2^e, in steps that are floats themselves; three go from one end of the range to the other."""
    for _ in tl.static_range(3):
        if x.dtype == tl.float64:
            part = tl.minimum(tl.maximum(e, -1022), 1022)
            x = x * ((part.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
        else:
            part = tl.minimum(tl.maximum(e, -126), 126)
            x = x * ((part + 127) << 23).to(tl.float32, bitcast=True)
        e = e - part
    return x


@triton.jit
def reduce_blocks(
    jacobians,
    jacobians_t,
    jacobians_b,
    offsets,
    offsets_t,
    offsets_b,
    products,
    exponents,
    sums,
    lengths,
    steps,
    rows,
    chunk,
    direction,
    D: tl.constexpr,
    m: tl.constexpr,
    P: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program for a chunk, row and block: M <- J^T M, v <- J^T v + b over the steps, in the sweep's order."""
    at = tl.program_id(0).to(tl.int64)  # of [chunks, B, D]
    block, row, part = at % D, at // D % rows, (at // D // rows).to(tl.int32)
    start = part * chunk
    stop = tl.minimum(start + chunk, steps)
    if lengths is not None:
        stop = tl.minimum(stop, tl.load(lengths + row).to(tl.int32))
    first = tl.where(direction > 0, start, stop - 1)
    i, k = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    inside = (i < m) & (k < m)
    matrix = jacobians + row * jacobians_b + block * (m * m) + i * m + k
    vector = offsets + row * offsets_b + block * m + i
    REAL: tl.constexpr = products.dtype.element_ty
    M = tl.where(i == k, 1.0, 0.0).to(REAL)
    e = tl.zeros([P, 1], tl.int32)
    v = tl.zeros([P, 1], REAL)
    for n in range(stop - start):
        t = (first + n * direction).to(tl.int64)
        J = tl.load(matrix + t * jacobians_t, mask=inside, other=0.0)
        b = tl.load(vector + t * offsets_t, mask=i < m, other=0.0)
        v = tl.sum(J * tl.reshape(v, [1, P]), 1, keep_dims=True) + b
        # Row i of the product is sum_k J[i, k] 2^e[k] M[k]: its exponent is that of the largest factor.
        e_k = tl.reshape(e, [1, P])
        e = tl.maximum(tl.max(exponent(J) + e_k, 1, keep_dims=True), NOTHING)
        M = tl.dot(scaled(J, e_k - e), M, input_precision=PRECISION, out_dtype=REAL)
        if n % 8 == 7:  # a product of 64 columns grows M by 2^8 at most
            grown = tl.max(exponent(M), 1, keep_dims=True)
            M, e = scaled(M, -grown), tl.maximum(e + grown, NOTHING)
    grown = tl.max(exponent(M), 1, keep_dims=True)
    M, e = scaled(M, -grown), tl.maximum(e + grown, NOTHING)
    tl.store(products + at * (m * m) + i * m + k, M, mask=inside)
    tl.store(exponents + at * m + i, e, mask=i < m)
    tl.store(sums + at * m + i, v, mask=i < m)


@triton.jit
def boundaries_of_blocks(
    products,
    exponents,
    sums,
    g,
    boundaries,
    chunks,
    rows,
    direction,
    D: tl.constexpr,
    m: tl.constexpr,
    P: tl.constexpr,
) -> None:
    """One program for a row and block: what stands before each chunk's first step, in the sweep's order. `g` is what
    stands before the first chunk, and in the end what the last one leaves."""
    at = tl.program_id(0).to(tl.int64)  # of [B, D]
    i, k = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    inside = (i < m) & (k < m)
    now = tl.load(g + at * m + i, mask=i < m, other=0.0)
    first = tl.where(direction > 0, 0, chunks - 1)
    for n in range(chunks):
        part = (first + n * direction).to(tl.int64) * rows * D + at
        tl.store(boundaries + part * m + i, now, mask=i < m)
        M = tl.load(products + part * (m * m) + i * m + k, mask=inside, other=0.0)
        e = tl.load(exponents + part * m + i, mask=i < m, other=0)
        v = tl.load(sums + part * m + i, mask=i < m, other=0.0)
        now = scaled(tl.sum(M * tl.reshape(now, [1, P]), 1, keep_dims=True), e) + v
    tl.store(g + at * m + i, now, mask=i < m)


@triton.jit
def reduce_diagonal(
    jacobians,
    jacobians_t,
    jacobians_b,
    offsets,
    offsets_t,
    offsets_b,
    products,
    exponents,
    sums,
    lengths,
    steps,
    rows,
    chunk,
    direction,
    width,
    P: tl.constexpr,
) -> None:
    """One program for a chunk, a row and P columns."""
    blocks = tl.cdiv(width, P)
    at = (tl.program_id(0) // blocks).to(tl.int64)  # of [chunks, B]
    row, part = at % rows, (at // rows).to(tl.int32)
    column = (tl.program_id(0) % blocks) * P + tl.arange(0, P)
    inside = column < width
    start = part * chunk
    stop = tl.minimum(start + chunk, steps)
    if lengths is not None:
        stop = tl.minimum(stop, tl.load(lengths + row).to(tl.int32))
    first = tl.where(direction > 0, start, stop - 1)
    REAL: tl.constexpr = products.dtype.element_ty
    M = tl.full([P], 1.0, REAL)
    e = tl.zeros([P], tl.int32)
    v = tl.zeros([P], REAL)
    for n in range(stop - start):
        t = (first + n * direction).to(tl.int64)
        J = tl.load(jacobians + row * jacobians_b + t * jacobians_t + column, mask=inside, other=0.0)
        b = tl.load(offsets + row * offsets_b + t * offsets_t + column, mask=inside, other=0.0)
        v = J * v + b
        grown = exponent(J)
        M = M * scaled(J, -grown)
        e = tl.maximum(e + grown, NOTHING)
        grown = exponent(M)
        M, e = scaled(M, -grown), tl.maximum(e + grown, NOTHING)
    tl.store(products + at * width + column, M, mask=inside)
    tl.store(exponents + at * width + column, e, mask=inside)
    tl.store(sums + at * width + column, v, mask=inside)


@triton.jit
def boundaries_of_diagonal(
    products, exponents, sums, g, boundaries, chunks, rows, direction, width, P: tl.constexpr
) -> None:
    """One program for P numbers of [B, n]; otherwise as `boundaries_of_blocks`."""
    column = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    size = rows.to(tl.int64) * width
    inside = column < size
    now = tl.load(g + column, mask=inside, other=0.0)
    first = tl.where(direction > 0, 0, chunks - 1)
    for n in range(chunks):
        part = (first + n * direction) * size + column
        tl.store(boundaries + part, now, mask=inside)
        M = tl.load(products + part, mask=inside, other=0.0)
        e = tl.load(exponents + part, mask=inside, other=0)
        now = scaled(M * now, e) + tl.load(sums + part, mask=inside, other=0.0)
    tl.store(g + column, now, mask=inside)
