"""The numeric phase of a sparse product in Triton: every number of the result is a sum of products of pairs.

A GPU has a program for each block of results, so here a plan is turned around: not what each product adds to, but what
each result consists of (BPPSA section 3.3). Nobody writes what another does, and every sum has one order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sums_of_pairs(
    a,
    b,
    out,
    offsets,
    left,
    right,
    count,
    samples,
    a_sample,
    a_entry,
    b_sample,
    b_entry,
    out_sample,
    out_entry,
    P: tl.constexpr,
    S: tl.constexpr,
) -> None:
    """out[s, i] = the sum of a[s, left[p]] * b[s, right[p]] over p from offsets[i] to offsets[i + 1]. One program for P
    results of S samples. left: null where it is p itself."""
    blocks = tl.cdiv(samples, S)
    i = (tl.program_id(0) // blocks).to(tl.int64) * P + tl.arange(0, P)[None, :]
    s = (tl.program_id(0) % blocks).to(tl.int64) * S + tl.arange(0, S)[:, None]
    mine = i < count
    begin = tl.load(offsets + i, mask=mine, other=0)
    terms = tl.load(offsets + i + 1, mask=mine, other=0) - begin
    total = tl.zeros([S, P], dtype=out.dtype.element_ty)
    for n in range(tl.max(terms)):
        inside = (n < terms) & (s < samples)
        p = begin + n
        of_a = p if left is None else tl.load(left + p, mask=n < terms, other=0).to(tl.int64)
        of_b = tl.load(right + p, mask=n < terms, other=0).to(tl.int64)
        x = tl.load(a + s * a_sample + of_a * a_entry, mask=inside, other=0.0)
        y = tl.load(b + s * b_sample + of_b * b_entry, mask=inside, other=0.0)
        total += x * y
    tl.store(out + s * out_sample + i * out_entry, total, mask=mine & (s < samples))
