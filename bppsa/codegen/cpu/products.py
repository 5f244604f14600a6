"""Several matmuls over the same rows in one native call: what remains to be done after a backward sweep.

A library for each element type serves every size. Rows are worked off in blocks that stay in the cache, so that the
second product of a block finds its operands there; see skeleton/products.h.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.native import INT, INT64, NS_PER_PRODUCT, POINTER, threads_sharing
from bppsa.codegen.cpu.print_cpp import skeleton
from bppsa.codegen.lowering.lower import ColumnRun

LEAST_NS = 30_000  # of a call's work for each thread


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """out = left^T right; left: [R, K], right: [R, n] of which `runs` are the columns, out: [K, N], any strides."""

    out: Tensor
    left: Tensor
    right: Tensor
    runs: tuple[ColumnRun, ...]


@dataclass(frozen=True, eq=False)
class Projection:
    """out = left @ weight, over the columns of left and the rows of weight that each run pairs; left: [R, n], weight:
    [D, N], any strides, out: [R, N]."""

    out: Tensor
    left: Tensor
    weight: Tensor
    runs: tuple[ColumnRun, ...]


@functools.cache
def source(real: str) -> str:
    """`real` is "float" or "double"."""
    texts = ("vec.h", "intrinsics.h", "gemm.h", "arena.h", "panels.h", "products.h")
    calls = ("images/call.h", "calls.h", "images/table.h")
    return "\n".join([f"using real = {real};", *map(skeleton, (*texts, *calls))])


class NativeProducts:
    """Operands have contiguous columns and elements of `real`. `allocate`: (count, type) -> work memory, [count]."""

    def __init__(self, real: str, allocate: Callable[[int, torch.dtype], Tensor]) -> None:
        self.allocate = allocate
        library = build.library(source(real))
        self._run: Any = library.bppsa_products
        self._run.argtypes, self._run.restype = (POINTER, INT64, INT, POINTER), None
        self._workspace: Any = library.bppsa_products_workspace
        self._workspace.argtypes, self._workspace.restype = (POINTER, INT64, INT), INT64

    def __call__(
        self, outers: Sequence[OuterProduct], projections: Sequence[Projection], *, threads: int | None = None
    ) -> None:
        """Sums are the same in every call with as many threads; in a forked child there is but one."""
        rows = (outers or projections)[0].left.shape[0]
        if threads is None:
            threads = self.threads(outers, projections, rows)
        words = array("q", [len(outers), len(projections)])
        for outer in outers:
            words.extend(of_outer(outer))
        for projection in projections:
            words.extend(of_projection(projection))
        at = words.buffer_info()[0]
        workspace = self.allocate(self._workspace(at, rows, threads), torch.uint8)
        self._run(at, rows, threads, workspace.data_ptr())

    def threads(self, outers: Sequence[OuterProduct], projections: Sequence[Projection], rows: int) -> int:
        products = sum(o.out.numel() for o in outers)
        products += sum(p.out.shape[1] * run.width for p in projections for run in p.runs)
        return threads_sharing(rows * products * NS_PER_PRODUCT, LEAST_NS)


def of_outer(outer: OuterProduct) -> list[int]:
    """The numbers in the order in which the skeleton reads them, as is what `of_projection` gives."""
    runs = [number for run in outer.runs for number in (run.column, run.width)]
    left = [outer.left.data_ptr(), outer.left.stride(0), 1, 0, outer.left.shape[1]]
    right = [outer.right.data_ptr(), outer.right.stride(0), len(outer.runs), *runs]
    return [*left, *right, outer.out.data_ptr(), *outer.out.stride()]


def of_projection(projection: Projection) -> list[int]:
    at, (row, column) = projection.weight.data_ptr(), projection.weight.stride()
    size = projection.weight.element_size()
    pieces = [
        number
        for run in projection.runs
        for number in (run.column, run.width, at + size * row * run.start, row, column)
    ]
    left = [projection.left.data_ptr(), projection.left.stride(0), len(projection.runs)]
    return [*left, *pieces, projection.out.data_ptr(), projection.out.stride(0), projection.out.shape[1]]
