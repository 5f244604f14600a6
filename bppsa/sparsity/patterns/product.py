"""The product of two static CSR patterns: what of it is known before any value is (BPPSA section 3.3).

The symbolic phase runs once for a pair of patterns and leaves a `ProductPlan`; the numeric phase only multiplies and
adds. Here both are ATen ops: the definition of what the kernels of `codegen/cpu/sparse.py` compute, and what runs where
none can be built. Products stand in Gustavson's order: by row of A, by entry of that row, by entry of the row of B
that it meets. An entry outside a pattern is a structural zero: it meets nothing, not even NaN or Inf. Within patterns
values multiply and add as IEEE 754 has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.sparsity.patterns.pattern import Pattern, starts_of

# Bytes of slots, 4 a product, up to which reading them is faster than scattering into a whole row and gathering it.
MOST_SLOT_BYTES = 64 << 20
BLOCK = 1 << 21  # products that ATen ops take at once


@dataclass(frozen=True, eq=False)
class ProductPlan:
    """A [N, K] times B [K, M] is C [N, M].

    Args:
        a, b, c: the patterns; c has an entry where at least one product falls.
        starts: int64 [N + 1], the products before those of each row.
        slots: int32 [products], the place of each product among the entries of its row of C; None where that takes
            more than MOST_SLOT_BYTES.
    """

    a: Pattern
    b: Pattern
    c: Pattern
    starts: Tensor
    slots: Tensor | None

    @property
    def products(self) -> int:
        """Multiplications of the numeric phase, for one sample."""
        return int(self.starts[-1])

    @property
    def density(self) -> float:
        """The part of C that can be non-zero."""
        n, m = self.c.shape
        return self.c.nnz / max(n * m, 1)

    @property
    def bytes(self) -> int:
        """What keeping the plan takes besides A and B."""
        kept = (self.c.indptr, self.c.indices, self.starts, *([] if self.slots is None else [self.slots]))
        return sum(tensor.nbytes for tensor in kept)


def counts(a: Pattern, b: Pattern) -> Tensor:
    """int64 [N + 1]: the products before those of each row of A B; the last is their number. No symbolic phase."""
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a pattern of {a.shape} cannot be multiplied by one of {b.shape}")
    return starts_of(b.indptr.diff()[a.indices])[a.indptr]


def symbolic(a: Pattern, b: Pattern) -> ProductPlan:
    """The plan of A B, without looking for one that is known. Raises ValueError where sizes do not match."""
    starts, (n, m) = counts(a, b), (a.shape[0], b.shape[1])
    rows, columns, slots = [], [], []
    for first, last in blocks(starts):
        left, right = entries(a, b, first, last)
        keys = a.rows[left] * m + b.indices[right]
        found, place = torch.unique(keys, return_inverse=True)  # sorted: row by row, columns ascending
        rows.append(found // max(m, 1))
        columns.append(found % max(m, 1))
        begins = torch.searchsorted(found, torch.arange(first, last + 1) * m)
        slots.append((place - begins[a.rows[left] - first]).to(torch.int32))
    empty = torch.zeros(0, dtype=torch.int64)
    filled = torch.bincount(torch.cat([*rows, empty]), minlength=n)
    c = Pattern(starts_of(filled), torch.cat([*columns, empty]), (n, m))
    few = 4 * int(starts[-1]) <= MOST_SLOT_BYTES
    return ProductPlan(a, b, c, starts, torch.cat([*slots, empty.to(torch.int32)]) if few else None)


def multiply(plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
    """The values of C, [E] or [B, E], from those of A and B: [E] where the batch shares them, else [B, E]."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    out = torch.zeros(*torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]), plan.c.nnz, dtype=dtype, device=a.device)
    m = plan.c.shape[1]
    for first, last in blocks(plan.starts):
        left, right = entries(plan.a, plan.b, first, last)
        rows = plan.a.rows[left]
        if plan.slots is not None:
            at = plan.c.indptr[rows] + plan.slots[plan.starts[first] : plan.starts[last]]
        else:
            begin, end = plan.c.indptr[first], plan.c.indptr[last]
            known = plan.c.rows[begin:end] * m + plan.c.indices[begin:end]
            at = begin + torch.searchsorted(known, rows * m + plan.b.indices[right])
        left, right, at = (index.to(a.device) for index in (left, right, at))
        out = out.index_add(-1, at, a[..., left].to(dtype) * b[..., right].to(dtype))
    return out


def blocks(starts: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of rows, in each about BLOCK products and at least one row."""
    first, rows = 0, len(starts) - 1
    while first < rows:
        last = int(torch.searchsorted(starts, starts[first] + BLOCK, right=True)) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def entries(a: Pattern, b: Pattern, first: int, last: int) -> tuple[Tensor, Tensor]:
    """The entry of A and that of B of each product in rows first to last, in Gustavson's order, int64 each."""
    left = torch.arange(int(a.indptr[first]), int(a.indptr[last]))
    k = a.indices[left]
    each = b.indptr.diff()[k]
    before = each.cumsum(0) - each
    right = torch.repeat_interleave(b.indptr[k] - before, each)
    return torch.repeat_interleave(left, each), right + torch.arange(len(right))
