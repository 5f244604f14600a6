"""Call the kernel of `sparse_kernels.py` on tensors: products by a plan, and J^T g."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bppsa.codegen.gpu.native import launch
from bppsa.sparsity.patterns.pattern import Pattern, starts_of
from bppsa.sparsity.patterns.product import ProductPlan, entries

NUMBERS, WARPS = 128, 4  # results of a program, and threads for one each
MOST_SAMPLES = 8  # of a program


@dataclass(frozen=True)
class Pairs:
    """Result i is a sum over pairs offsets[i] to offsets[i + 1]. offsets: int64 [results + 1]; left, right: int32
    [pairs], which entry of A and of B; left is None where pair p has A's entry p."""

    offsets: Tensor
    left: Tensor | None
    right: Tensor

    def to(self, device: torch.device) -> Pairs:
        left = None if self.left is None else self.left.to(device)
        return Pairs(self.offsets.to(device), left, self.right.to(device))


def pairs_of(plan: ProductPlan) -> Pairs:
    """The pairs of each entry of C, in Gustavson's order: 8 bytes a product."""
    left, right = entries(plan.a, plan.b, 0, plan.a.shape[0])
    m = plan.c.shape[1]
    known = plan.c.rows * m + plan.c.indices
    place = torch.searchsorted(known, plan.a.rows[left] * m + plan.b.indices[right])
    order = torch.argsort(place, stable=True)
    offsets = starts_of(torch.bincount(place, minlength=plan.c.nnz))
    return Pairs(offsets, left[order].to(torch.int32), right[order].to(torch.int32))


class TritonSparse:
    """Values [E] or [B, E] of any strides, on one device. What is known of a plan stays on the device with it."""

    def __init__(self) -> None:
        self._pairs: WeakKeyDictionary[ProductPlan | Pattern, Pairs] = WeakKeyDictionary()

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
        """The values of C, [E] or [B, E]."""
        return sums(self._of(plan, a.device), a, b)

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
        """J^T g: g [B, M] to [B, N]."""
        return sums(self._of(pattern, g.device), values, g)

    def _of(self, known: ProductPlan | Pattern, device: torch.device) -> Pairs:
        found = self._pairs.get(known)
        if found is None or found.offsets.device != device:
            made = pairs_of(known) if isinstance(known, ProductPlan) else Pairs(known.indptr, None, known.columns)
            self._pairs[known] = found = made.to(device)
        return found


def sums(pairs: Pairs, a: Tensor, b: Tensor) -> Tensor:
    """[R] or [B, R]: the result of each of R sums, laid out as the operand that the batch does not share."""
    from bppsa.codegen.gpu.triton import sparse_kernels

    count, batch = len(pairs.offsets) - 1, torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    samples = batch.numel()
    in_lanes = any(t.dim() == 2 and t.stride(0) == 1 and t.stride(1) > 1 for t in (a, b))
    out = torch.empty(count, samples, dtype=a.dtype, device=a.device).t() if in_lanes else a.new_empty(samples, count)
    if count and samples:
        block = min(MOST_SAMPLES, 1 << (samples - 1).bit_length())
        steps = [step for t in (a, b, out) for step in (t.stride(0) if t.dim() == 2 else 0, t.stride(-1))]
        given = (a, b, out, pairs.offsets, pairs.left, pairs.right, count, samples, *steps, NUMBERS, block)
        programs = -(-count // NUMBERS) * -(-samples // block)
        launch("sums_of_pairs", sparse_kernels.sums_of_pairs, programs, given, {"num_warps": WARPS})
    return out if batch else out[0]
