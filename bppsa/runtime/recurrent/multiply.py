"""Products over all rows of a sweep: by our own kernel where that is faster, else by PyTorch's matmuls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.codegen import isa
from bppsa.codegen.cpu.products import NativeProducts, OuterProduct, Projection
from bppsa.runtime import pool

Multiply = Callable[[Sequence[OuterProduct], Sequence[Projection]], None]

# Widest product for our own kernel, measured for 1 to 16000 rows on two cores. With AVX-512 it takes 0.4 to 0.9 of the
# time of the matmuls from 20 to 256 columns, and up to 1.4 from 384 on; with AVX2 0.7 to 1.2 up to 48, and 1 to 1.5
# from 64 on. With fewer rows than columns it is no faster.
WIDEST = {True: 256, False: 48}  # by whether registers are wide

# MKL sums a product of so few rows or columns one by one: over BLOCK rows at a time the sum rounds much less.
NARROW, BLOCK = 32, 32


def by_torch(
    outers: Sequence[OuterProduct],
    projections: Sequence[Projection],
    store: Callable[[Tensor, Tensor, Tensor], object] | None = None,
) -> None:
    """store: computes a gradient of a weight, by default `store_product`."""
    store = store or store_product
    for outer in outers:
        for run in outer.runs:
            part = outer.out[:, run.start : run.start + run.width]
            right = outer.right[:, run.column : run.column + run.width]
            if part.stride(1) == 1:
                store(part, outer.left.t(), right)
            else:
                store(part.t(), right.t(), outer.left)
    for projection in projections:
        for i, run in enumerate(projection.runs):
            left = projection.left[:, run.column : run.column + run.width]
            weight = projection.weight[run.start : run.start + run.width]
            if i == 0:
                torch.mm(left, weight, out=projection.out)
            else:
                projection.out.addmm_(left, weight)


def on_gpu(outers: Sequence[OuterProduct], projections: Sequence[Projection]) -> None:
    """cuBLAS sums long products in parts itself."""
    by_torch(outers, projections, lambda out, a, b: torch.mm(a, b, out=out))


class Faster:
    """Chooses for each product. `real` is the type of all elements, "float" or "double"."""

    def __init__(self, real: str) -> None:
        self.real = real

    def __call__(self, outers: Sequence[OuterProduct], projections: Sequence[Projection]) -> None:
        own = [o for o in outers if suits(o.left.shape[0], *o.out.shape)]
        own_projections = [p for p in projections if suits(p.left.shape[0], *p.weight.shape)]
        if own or own_projections:
            self.native(own, own_projections)
        by_torch([o for o in outers if o not in own], [p for p in projections if p not in own_projections])

    @functools.cached_property
    def native(self) -> NativeProducts:
        return NativeProducts(self.real, pool.take)


def suits(rows: int, depth: int, width: int) -> bool:
    """Whether our kernel takes a product over so many rows whose weight, or gradient of one, is [depth, width]."""
    return 0 < min(depth, width) <= min(rows, WIDEST[isa.chosen().wide])


def store_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out = a b; a: [N, R], b: [R, K]"""
    whole = a.shape[1] // BLOCK * BLOCK
    if min(out.shape) >= NARROW or whole <= BLOCK:
        torch.mm(a, b, out=out)
        return
    blocks = torch.bmm(a[:, :whole].unflatten(1, (-1, BLOCK)).transpose(0, 1), b[:whole].unflatten(0, (-1, BLOCK)))
    torch.sum(blocks, 0, out=out).addmm_(a[:, whole:], b[whole:])
