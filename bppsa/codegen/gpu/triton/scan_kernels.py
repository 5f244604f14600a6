"""The second phase of a scan in Triton: the cotangent that enters each chunk, from the chunks' reductions.

A chunk is the affine map g -> M g + v. Its reduction (`assembling/reduction.py`) leaves, as rows of a tensor [C, B, m +
2, pitch], the m columns of M, then v, then a row that is NaN wherever anything of g gets through; after N numbers and
one more, the powers of two of the columns, or where M is diagonal of its numbers.
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
def applied(at: tl.tensor, now: tl.tensor, pitch: tl.tensor, N: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """M now + v of the chunk whose columns stand at `at`; now: [1, P]."""
    j, n = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    M = tl.load(at + j * pitch + n, mask=(j < N) & (n < N), other=0.0)
    e = tl.load(at + j * pitch + N + 1, mask=j < N, other=0.0).to(tl.int32)
    v = tl.load(at + N * pitch + n, mask=n < N, other=0.0)
    through = tl.load(at + (N + 1) * pitch + n, mask=n < N, other=0.0)
    # column j counts for M[j] 2^e[j] now[j]: all are brought to the size of the largest of these factors
    factor = tl.reshape(now, [P, 1])
    size = e + exponent(factor)
    most = tl.max(size, 0, keep_dims=True)
    total = scaled(tl.sum(M * scaled(factor, e - most), 0, keep_dims=True), most)
    return tl.where(through != through, total, 0.0) + v


@triton.jit
def applied_transposed(at: tl.tensor, now: tl.tensor, pitch: tl.tensor, N: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """M^T now + v; what no cotangent gets through, no tangent does."""
    j, n = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    M = tl.load(at + j * pitch + n, mask=(j < N) & (n < N), other=0.0)
    e = tl.load(at + j * pitch + N + 1, mask=j < N, other=0.0).to(tl.int32)
    v = tl.load(at + N * pitch + j, mask=j < N, other=0.0)
    through = tl.load(at + (N + 1) * pitch + n, mask=n < N, other=0.0)
    total = tl.sum(tl.where(through != through, M * now, 0.0), 1, keep_dims=True)
    return tl.reshape(scaled(total, e) + v, [1, P])


@triton.jit
def boundaries_of_columns(
    running, g, entering, chunks, rows, direction, pitch, N: tl.constexpr, P: tl.constexpr, TRANSPOSED: tl.constexpr
) -> None:
    """One program for a row of the batch: g [B, N] enters the first chunk it comes to, what enters each is stored.
    TRANSPOSED: a chunk is g -> M^T g + v."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)[None, :]
    now = tl.load(g + row * N + n, mask=n < N, other=0.0)
    first = tl.where(direction > 0, 0, chunks - 1)
    for i in range(chunks):
        part = (first + i * direction).to(tl.int64) * rows + row
        tl.store(entering + part * N + n, now, mask=n < N)
        at = running + part * (N + 2) * pitch
        now = applied_transposed(at, now, pitch, N, P) if TRANSPOSED else applied(at, now, pitch, N, P)


@triton.jit
def up_level(
    running,
    g,
    lefts,
    rights,
    reached,
    rows,
    pitch,
    N: tl.constexpr,
    P: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program for a pair and a row: a[right] <- a[left] . a[right] (BPPSA Algorithm 1, line 4). What the cotangent
    has `reached` is a vector, and stands in g."""
    pair, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    left = tl.load(lefts + pair).to(tl.int64) * rows + row
    right = tl.load(rights + pair).to(tl.int64) * rows + row
    n = tl.arange(0, P)[None, :]
    at = running + right * (N + 2) * pitch
    if tl.load(reached + pair) != 0:
        now = tl.load(g + left * N + n, mask=n < N, other=0.0)
        tl.store(g + right * N + n, applied(at, now, pitch, N, P), mask=n < N)
    else:
        compose(running + left * (N + 2) * pitch, at, pitch, N, P, PRECISION)


@triton.jit
def compose(
    first: tl.tensor, then: tl.tensor, pitch: tl.tensor, N: tl.constexpr, P: tl.constexpr, PRECISION: tl.constexpr
) -> None:
    """What stands at `then` after what stands at `first`, into its place. Rows of a tile are columns of M: row j of the
    product is sum_k first[j, k] 2^e[k] then[k], and row N, of v, goes the same way."""
    j, n = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    inside = (j <= N) & (n < N)
    A = tl.load(then + j * pitch + n, mask=(j < N) & (n < N), other=0.0)
    B = tl.load(first + j * pitch + n, mask=inside, other=0.0)
    e = tl.load(then + n * pitch + N + 1, mask=n < N, other=0.0).to(tl.int32)
    shift = tl.maximum(tl.max(exponent(B) + e, 1, keep_dims=True), NOTHING)
    product = tl.dot(scaled(B, e - shift), A, input_precision=PRECISION, out_dtype=A.dtype)
    through = tl.load(then + (N + 1) * pitch + n, mask=n < N, other=0.0)
    product = tl.where(through != through, product, 0.0)
    # a column of M keeps its size beside it; v is a plain number
    size = tl.max(exponent(product), 1, keep_dims=True)
    size = tl.where((size > -126) & (size < 128), size, 0)
    before = tl.load(first + j * pitch + N + 1, mask=j < N, other=0.0).to(tl.int32)
    exponents = tl.where(j < N, before + shift + size, 0)
    v = tl.load(then + N * pitch + n, mask=n < N, other=0.0)
    value = scaled(product, tl.where(j < N, -size, shift)) + tl.where(j == N, v, 0.0)
    ends = tl.load(first + (N + 1) * pitch + n, mask=n < N, other=0.0)
    open_end = tl.max(tl.where(ends != ends, 1, 0), 1, keep_dims=True) > 0
    tl.debug_barrier()  # all has been read before any of it is written
    tl.store(then + j * pitch + n, value, mask=inside)
    tl.store(then + j * pitch + N + 1, exponents.to(A.dtype), mask=j < N)
    tl.store(then + (N + 1) * pitch + n, tl.where(open_end, through, 0.0), mask=n < N)


@triton.jit
def middle(running, g, places, count, rows, pitch, N: tl.constexpr, P: tl.constexpr) -> None:
    """One program for a row: an exclusive linear scan over the places, the first of which holds a vector."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, P)[None, :]
    now = tl.load(g + (tl.load(places).to(tl.int64) * rows + row) * N + n, mask=n < N, other=0.0)
    for i in range(1, count):
        place = tl.load(places + i).to(tl.int64) * rows + row
        tl.store(g + place * N + n, now, mask=n < N)
        if i < count - 1:
            now = applied(running + place * (N + 2) * pitch, now, pitch, N, P)


@triton.jit
def down_level(running, g, lefts, rights, reached, rows, pitch, N: tl.constexpr, P: tl.constexpr) -> None:
    """(a[left], a[right]) <- (a[right], a[left] applied to a[right]), lines 11 to 13; where a[left] is a vector,
    a[right] is the identity, and it moves."""
    pair, row = tl.program_id(0) // rows, tl.program_id(0) % rows
    left = tl.load(lefts + pair).to(tl.int64) * rows + row
    right = tl.load(rights + pair).to(tl.int64) * rows + row
    n = tl.arange(0, P)[None, :]
    if tl.load(reached + pair) != 0:
        tl.store(g + right * N + n, tl.load(g + left * N + n, mask=n < N, other=0.0), mask=n < N)
    else:
        now = tl.load(g + right * N + n, mask=n < N, other=0.0)
        found = applied(running + left * (N + 2) * pitch, now, pitch, N, P)
        tl.store(g + left * N + n, now, mask=n < N)
        tl.store(g + right * N + n, found, mask=n < N)


@triton.jit
def boundaries_of_numbers(
    running, g, entering, chunks, rows, direction, pitch, N: tl.constexpr, P: tl.constexpr, TRANSPOSED: tl.constexpr
) -> None:
    """The same where M is diagonal, its own transpose: one program for P numbers of [B, N]."""
    number = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    row, n = number // N, number % N
    inside = row < rows
    now = tl.load(g + number, mask=inside, other=0.0)
    first = tl.where(direction > 0, 0, chunks - 1)
    for i in range(chunks):
        part = (first + i * direction).to(tl.int64) * rows + row
        tl.store(entering + part * N + n, now, mask=inside)
        at = running + part * 3 * pitch + n
        M = tl.load(at, mask=inside, other=0.0)
        e = tl.load(at + N + 1, mask=inside, other=0.0).to(tl.int32)
        v = tl.load(at + pitch, mask=inside, other=0.0)
        through = tl.load(at + 2 * pitch, mask=inside, other=0.0)
        now = tl.where(through != through, scaled(M * now, e), 0.0) + v
