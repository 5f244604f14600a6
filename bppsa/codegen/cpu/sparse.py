"""Call the kernels over CSR patterns, skeleton/sparse/symbolic.h and sparse.h: a library for each element type.

Values of a batch come as [B, E] in one of two layouts, told by the strides: one sample after the other, or *lanes*,
strides (1, P), in which the samples of an entry lie side by side and P is a multiple of `LANES[real]`. In lanes an
index is read once for up to 16 samples. `as_lanes` changes one into the other, results are in that of the operands.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.cpu import build
from bppsa.codegen.cpu.native import CPU, INT, INT64, POINTER, threads_sharing
from bppsa.codegen.cpu.print_cpp import skeleton
from bppsa.sparsity.patterns import product
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.product import ProductPlan

LANES = {"float": 16, "double": 8}
NS_PER_PRODUCT = 0.6
LEAST_NS = 30_000  # of a call's work for each thread


@functools.cache
def source(real: str) -> str:
    """`real` is "float" or "double"."""
    parts = map(
        skeleton, ("vec.h", "intrinsics.h", "arena.h", "sparse/products.h", "sparse/panels.h", "sparse/values.h")
    )
    return "\n".join([f"using real = {real};", *parts])


def threads_for(products: int) -> int:
    return threads_sharing(products * NS_PER_PRODUCT, LEAST_NS)


def as_lanes(values: Tensor, lanes: int) -> Tensor:
    """[B, E] in lanes, with zeros in those that no sample has; itself where it is so already."""
    if in_lanes(values, lanes):
        return values
    samples, count = values.shape
    padded = -(-samples // lanes) * lanes
    laid = torch.empty(count, padded, dtype=values.dtype, device=CPU)
    laid[:, samples:] = 0
    laid[:, :samples] = values.t()
    return laid.t()[:samples]


def in_lanes(values: Tensor, lanes: int) -> bool:
    """Whether `as_lanes`, or a kernel, has laid it out: rows that are padded, and there to their very end."""
    if values.dim() != 2 or values.stride(0) != 1 or values.stride(1) % lanes or values.stride(1) < values.shape[0]:
        return False
    end = values.storage_offset() + values.shape[1] * values.stride(1)
    return end * values.element_size() <= values.untyped_storage().nbytes()


class NativeSymbolic:
    """`product.symbolic`, some fifty times as fast."""

    def __init__(self) -> None:
        library = build.library(skeleton("sparse/symbolic.h"))
        self._count: Any = library.bppsa_count
        self._count.argtypes, self._count.restype = (*[POINTER] * 5, INT64, INT64, INT, POINTER), None
        self._fill: Any = library.bppsa_fill
        self._fill.argtypes, self._fill.restype = (*[POINTER] * 5, INT64, INT64, INT, *[POINTER] * 3), None

    def __call__(self, a: Pattern, b: Pattern, *, threads: int | None = None) -> ProductPlan:
        starts, (n, m) = product.counts(a, b), (a.shape[0], b.shape[1])
        products = int(starts[-1])
        threads = threads or threads_for(products)
        given = [t.data_ptr() for t in (a.indptr, a.columns, b.indptr, b.columns, starts)]
        indptr = torch.zeros(n + 1, dtype=torch.int64)
        self._count(*given, n, m, threads, indptr.data_ptr() + indptr.element_size())
        indptr = indptr.cumsum(0)
        indices = torch.empty(int(indptr[-1]), dtype=torch.int64)
        few = 4 * products <= product.MOST_SLOT_BYTES
        slots = torch.empty(products, dtype=torch.int32) if few else None
        slots_at = None if slots is None else slots.data_ptr()
        self._fill(*given, n, m, threads, indptr.data_ptr(), indices.data_ptr(), slots_at)
        return ProductPlan(a, b, Pattern(indptr, indices, (n, m)), starts, slots)


VECTOR, TILE_BYTES, LEAST_MET, LEAST_DENSITY = 64, 16 << 10, 4, 0.5
# Where this part of what an entry of A meets in B can be non-zero, B is unpacked and zeros are multiplied too, unless
# its rows are so many that they do not fit the cache.
LEAST_FILL = {"float": 0.07, "double": 0.14}
MOST_UNPACKED_ROWS = 2048


class NativeSparse:
    """Numeric phases for contiguous values [E] or [B, E] of `real` on a CPU, or values in lanes.

    What a batch has for all its samples, or each sample for itself, may be mixed in one call.
    allocate: (count, type) -> [count], for results and work memory.
    """

    def __init__(self, real: str, allocate: Callable[[int, torch.dtype], Tensor]) -> None:
        self.real, self.lanes, self.allocate = real, LANES[real], allocate
        library = build.library(source(real))
        operand, size = (POINTER, INT64), (INT64, INT)
        signatures: dict[str, tuple[Any, ...]] = {
            "multiply": (POINTER, *operand * 3, *size),
            "mv": (POINTER, INT64, *operand * 3, *size),
            "scale": (POINTER, INT64, *operand * 3, *size, INT, INT),
            "multiply_panels": (POINTER, INT64, *[POINTER] * 4, INT),
            "mm": (POINTER, *[INT64] * 3, POINTER, *operand * 2, POINTER, INT),
            "chosen": (POINTER, INT64, INT64, POINTER, POINTER, *size),
        }
        for name in ("multiply", "mv", "scale"):
            signatures[f"{name}_lanes"] = signatures[name]
        signatures["multiply_lanes"] += (INT64, INT64, INT)
        self._call: dict[str, Any] = {name: getattr(library, f"bppsa_{name}") for name in signatures}
        for name, arguments in signatures.items():
            self._call[name].argtypes, self._call[name].restype = arguments, None
        self._panel_size: Any = library.bppsa_panel_size
        self._panel_size.argtypes, self._panel_size.restype = (INT64,), INT64

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor, *, threads: int | None = None) -> Tensor:
        """The values of C, [E] or [B, E]."""
        threads = threads or threads_for(plan.products * max(samples_of(a), samples_of(b)))
        if a.dim() == b.dim() == 1 and self.unpacks(plan, a):
            return self._by_panels(plan, a, b, threads)
        name, (a, b), out = self._laid("multiply", [a, b], plan.c.nnz)
        lanes = name == "multiply_lanes"
        words = self._words(plan, lanes)
        tiles = (plan.b.shape[0], tile(plan), by_tiles(plan)) if lanes else ()
        self._call[name](words.buffer_info()[0], *steps(a, b, out), samples_of(out), threads, *tiles)
        return out

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor, *, threads: int | None = None) -> Tensor:
        """J^T g: g [B, M] to [B, N]."""
        threads = threads or threads_for(pattern.nnz * len(g))
        name, (values, g), out = self._laid("mv", [values, g], pattern.shape[0])
        words = csr(pattern)
        self._call[name](words.buffer_info()[0], pattern.shape[0], *steps(values, g, out), len(g), threads)
        return out

    def mm(self, pattern: Pattern, values: Tensor, w: Tensor, *, threads: int | None = None) -> Tensor:
        """J^T w: values [E], w [M, P], to [N, P]."""
        values, w = values.contiguous(), w if w.stride(1) == 1 else w.contiguous()
        (n, k), p = pattern.shape, w.shape[1]
        threads = threads or threads_for(pattern.nnz * p // LANES[self.real])
        out, workspace = self.allocate(n * p, w.dtype).view(n, p), self._workspace(k, threads, w.dtype)
        words, at = csr(pattern), workspace.data_ptr()
        matrices = w.data_ptr(), w.stride(0), out.data_ptr(), p
        self._call["mm"](words.buffer_info()[0], n, k, p, values.data_ptr(), *matrices, at, threads)
        return out

    def scale(
        self,
        pattern: Pattern,
        values: Tensor,
        d: Tensor,
        *,
        rows: bool,
        select: bool = False,
        threads: int | None = None,
    ) -> Tensor:
        """Each value times that number of d, [n] or [B, n], of its row or column; 0 where `select` and d is 0."""
        threads = threads or threads_for(pattern.nnz * max(samples_of(values), samples_of(d)))
        name, (values, d), out = self._laid("scale", [values, d], pattern.nnz)
        words, end = csr(pattern), (samples_of(out), threads, rows, select)
        self._call[name](words.buffer_info()[0], pattern.shape[0], *steps(values, d, out), *end)
        return out

    def chosen(self, grid: Pattern, place: Tensor, dtype: torch.dtype, *, threads: int | None = None) -> Tensor:
        """place [B, C, *windows], int64, to [B, C * E]: 1 at each window's entry of the place that it took, else 0."""
        (places, windows), rows = grid.shape, len(place)
        planes, words = rows * place.shape[1], csr(grid)
        place, out = place.contiguous(), self.allocate(planes * grid.nnz, dtype)
        threads = threads or threads_for(planes * windows)
        self._call["chosen"](words.buffer_info()[0], places, windows, place.data_ptr(), out.data_ptr(), planes, threads)
        return out.view(rows, -1)

    def unpacks(self, plan: ProductPlan, a: Tensor) -> bool:
        """Whether B is better multiplied as a dense matrix. A zero of it must not meet an Inf or NaN of A."""
        whole = plan.a.nnz * plan.c.shape[1]
        worth = plan.products > LEAST_FILL[self.real] * whole and plan.b.shape[0] <= MOST_UNPACKED_ROWS
        return worth and bool(a.isfinite().all())

    def _by_panels(self, plan: ProductPlan, a: Tensor, b: Tensor, threads: int) -> Tensor:
        k = plan.b.shape[0]
        out, workspace = self.allocate(plan.c.nnz, a.dtype), self._workspace(k, threads, a.dtype)
        words = self._words(plan, columns=True, slots=False)
        at = [t.data_ptr() for t in (a.contiguous(), b.contiguous(), out, workspace)]
        self._call["multiply_panels"](words.buffer_info()[0], k, *at, threads)
        return out

    def _workspace(self, k: int, threads: int, dtype: torch.dtype) -> Tensor:
        return self.allocate(threads * self._panel_size(k), dtype)

    def _laid(self, name: str, operands: list[Tensor], count: int) -> tuple[str, list[Tensor], Tensor]:
        """The kernel that suits the batch, the operands in its layout, and room for `count` numbers a sample."""
        samples = max(samples_of(t) if t.dim() == 2 else 0 for t in operands)
        dtype = operands[0].dtype
        if not any(in_lanes(t, self.lanes) for t in operands) and samples < self.lanes // 2:
            out = self.allocate(max(samples, 1) * count, dtype).view(max(samples, 1), count)
            return name, [t.contiguous() for t in operands], out if samples else out[0]
        operands = [as_lanes(t, self.lanes) if t.dim() == 2 else t.contiguous() for t in operands]
        padded = -(-samples // self.lanes) * self.lanes
        return f"{name}_lanes", operands, self.allocate(count * padded, dtype).view(count, padded).t()[:samples]

    def _words(self, plan: ProductPlan, columns: bool = False, slots: bool = True) -> array[int]:
        """struct Plan. The columns of C only where they are read."""
        at = 0 if plan.slots is None or not slots else plan.slots.data_ptr()
        factors = [*csr(plan.a), *csr(plan.b), *csr(plan.c, columns or at == 0)]
        return array("q", [*factors, plan.starts.data_ptr(), at, plan.c.shape[0], plan.c.shape[1]])


def tile(plan: ProductPlan) -> int:
    """Columns of C that lanes work on at once: those of which a row takes TILE_BYTES, unless what an entry of A meets
    in so many is not worth coming back for."""
    n, m = plan.c.shape
    tiles = max(1, plan.c.nnz * VECTOR // (max(n, 1) * TILE_BYTES))
    tiles = min(tiles, plan.products // (LEAST_MET * max(plan.a.nnz, 1)) or 1)
    return max(1, -(-m // tiles))


def by_tiles(plan: ProductPlan) -> bool:
    """Whether lanes go through all rows of a tile first: worth it where rows of C are full and so read much of B, and
    where no slots are read, which lie row by row."""
    return plan.slots is None and plan.density >= LEAST_DENSITY


def csr(pattern: Pattern, columns: bool = True) -> array[int]:
    """struct Csr."""
    return array("q", [pattern.indptr.data_ptr(), pattern.columns.data_ptr() if columns else 0])


def samples_of(values: Tensor) -> int:
    return len(values) if values.dim() == 2 else 1


def steps(*operands: Tensor) -> list[int]:
    """The address of each, and how far apart its samples are, or in lanes its entries; 0 where samples share it."""
    return [
        number
        for t in operands
        for number in (t.data_ptr(), 0 if t.dim() == 1 else t.stride(1) if t.stride(0) == 1 else t.stride(0))
    ]
