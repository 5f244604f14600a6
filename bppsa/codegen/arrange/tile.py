"""Compile-time sizes of a group's loops: how its columns are cut into blocks, and its dot products into registers.

A few classes serve every width, so that a cell compiles a bounded number of kernels over all H.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from bppsa.codegen import isa

WHOLE, HALF = 64, 32  # bytes of a vector
MOST_ROWS = 8  # of a microkernel
POINT_VECTORS = 4  # of a block of a group without dot products


@dataclass(frozen=True)
class Tiling:
    """A panel of source s is `vectors[s]` vectors of `lanes` wide; `units` columns of the group at most make a block,
    which the pointwise part takes in vectors of `point` lanes."""

    lanes: int
    vectors: tuple[int, ...]
    units: int
    point: int


@functools.lru_cache(maxsize=4096)
def tile(width: int, dots: tuple[int, ...], size: int) -> Tiling:
    """The tiling of a group of `width` columns and `dots[s]` dot products of source s, elements of `size` bytes."""
    if not dots:
        point = _point(width, size)
        return Tiling(point, (), POINT_VECTORS * point, point)
    shapes = [
        _shape(math.ceil(width / blocks), dots, bytes_ // size, size)
        for bytes_ in ((WHOLE, HALF) if isa.chosen().wide else (HALF,))
        for blocks in range(1, width + 1)
    ]
    most = max(8 if isa.chosen().wide else 4, min(max(shape.vectors) for shape in shapes))
    return min((s for s in shapes if max(s.vectors) <= most), key=lambda s: _cost(s, width, size))


def _shape(columns: int, dots: tuple[int, ...], lanes: int, size: int) -> Tiling:
    """Panels for blocks of so many columns, which may then take some more."""
    vectors = tuple(math.ceil(d * columns / lanes) for d in dots)
    return Tiling(
        lanes, vectors, min(v * lanes // d for v, d in zip(vectors, dots, strict=True)), _point(columns, size)
    )


def _point(columns: int, size: int) -> int:
    return (WHOLE if isa.chosen().wide and columns > HALF // size else HALF) // size


def _cost(shape: Tiling, width: int, size: int) -> float:
    """Half vectors multiplied for each row and k, with what their loads and a block cost beside."""
    halves = shape.lanes * size // HALF
    return math.ceil(width / shape.units) * sum(v * halves * (1 + 0.5 / rows(v)) + 0.5 for v in shape.vectors)


def rows(vectors: int) -> int:
    """Rows of a microkernel; `max_rows` in skeleton/gemm.h."""
    registers = 32 if isa.chosen().wide else 16
    return next((m for m in range(MOST_ROWS, 1, -1) if m * vectors + min(m, vectors) < registers), 1)
