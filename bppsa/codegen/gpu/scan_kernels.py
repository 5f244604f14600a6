"""The second phase of a chunked scan in Triton: the cotangent that enters each chunk, from the chunks' reductions.

A chunk is the affine map g -> M g + v. Its reduction (`codegen/reduction.py`) leaves, as rows of a tensor [C, B, m + 2,
pitch], the m columns of M, then v, then a row that is NaN wherever anything of g gets through; after N numbers and one
more, the powers of two of the columns, or where M is diagonal of its numbers.
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
def boundaries_of_columns(
    running, g, entering, chunks, rows, direction, pitch, N: tl.constexpr, P: tl.constexpr
) -> None:
    """One program for a row of the batch: g [B, N] enters the first chunk it comes to, what enters each is stored."""
    row = tl.program_id(0).to(tl.int64)
    j, n = tl.arange(0, P)[:, None], tl.arange(0, P)[None, :]
    now = tl.load(g + row * N + n, mask=n < N, other=0.0)
    first = tl.where(direction > 0, 0, chunks - 1)
    for i in range(chunks):
        part = (first + i * direction).to(tl.int64) * rows + row
        tl.store(entering + part * N + n, now, mask=n < N)
        at = running + part * (N + 2) * pitch
        M = tl.load(at + j * pitch + n, mask=(j < N) & (n < N), other=0.0)
        e = tl.load(at + j * pitch + N + 1, mask=j < N, other=0.0).to(tl.int32)
        v = tl.load(at + N * pitch + n, mask=n < N, other=0.0)
        through = tl.load(at + (N + 1) * pitch + n, mask=n < N, other=0.0)
        # column j counts for M[j] 2^e[j] g[j]: all are brought to the size of the largest of these factors
        factor = tl.reshape(now, [P, 1])
        size = e + exponent(factor)
        most = tl.max(size, 0, keep_dims=True)
        total = scaled(tl.sum(M * scaled(factor, e - most), 0, keep_dims=True), most)
        now = tl.where(through != through, total, 0.0) + v


@triton.jit
def boundaries_of_numbers(
    running, g, entering, chunks, rows, direction, pitch, N: tl.constexpr, P: tl.constexpr
) -> None:
    """The same where M is diagonal: one program for P numbers of [B, N]."""
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
