"""The sum of two static CSR patterns: where each entry of either falls in the union, known before any value is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class SumPlan:
    """A + B is C, all N x M. of_a, of_b: int64 [E], the entry of C that each entry of A or of B adds to."""

    c: Pattern
    of_a: Tensor
    of_b: Tensor

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (self.c.indptr, self.c.indices, self.of_a, self.of_b))


def symbolic(a: Pattern, b: Pattern) -> SumPlan:
    """Raises ValueError where sizes differ."""
    if a.shape != b.shape:
        raise ValueError(f"a pattern of {a.shape} cannot be added to one of {b.shape}")
    m = a.shape[1]
    keys = torch.cat([a.rows * m + a.indices, b.rows * m + b.indices])
    found, place = torch.unique(keys, return_inverse=True)
    c = Pattern.from_entries(found // max(m, 1), found % max(m, 1), a.shape)
    return SumPlan(c, place[: a.nnz], place[a.nnz :])


def total(plan: SumPlan, a: Tensor, b: Tensor) -> Tensor:
    """The values of C, [E] or [B, E], from those of A and B."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    out = a.new_zeros(*torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]), plan.c.nnz, dtype=dtype)
    for at, values in ((plan.of_a, a), (plan.of_b, b)):
        out = out.index_add(-1, at.to(a.device), values.to(dtype).expand(*out.shape[:-1], -1))
    return out
