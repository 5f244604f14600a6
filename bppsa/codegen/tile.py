"""Compile-time sizes of a group's loops: how its columns are cut into blocks, and its dot products into registers.

A few classes serve every width, so that a cell compiles a bounded number of kernels over all H.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

LINE = 64  # bytes of the widest vector
HALF = 32


@dataclass(frozen=True)
class Tile:
    """`lanes`, `vectors[s]`: a panel of source s is `vectors[s]` vectors of `lanes` wide. `point`: lanes of the pointwise part."""

    lanes: int
    vectors: tuple[int, ...]
    point: int

    def units(self, dots: Sequence[int]) -> int:
        """Most columns of the group in one block; `dots[s]`: how many dot products read source s."""
        return min((v * self.lanes // d for v, d in zip(self.vectors, dots, strict=True)), default=4 * self.point)


@functools.cache
def wide() -> bool:
    """Whether this machine has 512-bit vectors and 32 registers."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@functools.cache
def tile(width: int, dots: tuple[int, ...], bytes_: int) -> Tile:
    """The tile for a group of `width` columns, `dots[s]` dot products of source s, elements of `bytes_`."""
    sizes = (LINE, HALF) if wide() else (HALF,)
    candidates = [_fit(width, dots, size // bytes_, blocks, bytes_) for size in sizes for blocks in range(1, width + 1)
                  if _panel(width, dots, size // bytes_, blocks) <= (8 if wide() else 4)]
    if not dots or not candidates:
        lanes = sizes[0] // bytes_
        return Tile(lanes, tuple(math.ceil(d * HALF / bytes_ / lanes) for d in dots), _point(width, bytes_))
    return min(candidates, key=lambda c: _cost(c, width, dots, bytes_))


def _panel(width: int, dots: tuple[int, ...], lanes: int, blocks: int) -> int:
    return max((math.ceil(d * math.ceil(width / blocks) / lanes) for d in dots), default=0)


def _fit(width: int, dots: tuple[int, ...], lanes: int, blocks: int, bytes_: int) -> Tile:
    units = math.ceil(width / blocks)
    return Tile(lanes, tuple(math.ceil(d * units / lanes) for d in dots), _point(units, bytes_))


def _point(units: int, bytes_: int) -> int:
    """Half vectors where whole ones would pad more."""
    whole, half = LINE // bytes_, HALF // bytes_
    return whole if wide() and units > half else half


def _cost(c: Tile, width: int, dots: tuple[int, ...], bytes_: int) -> float:
    """Half-vector multiplications and loads per row and k."""
    blocks = math.ceil(width / c.units(dots))
    ratio = c.lanes * bytes_ // HALF
    return blocks * sum(v * ratio * (1 + 0.5 / rows(v)) + 0.5 for v in c.vectors)


def rows(vectors: int) -> int:
    """Rows of a microkernel; `max_rows` in skeleton/gemm.h."""
    registers = 32 if wide() else 16
    return next(m for m in range(8, 0, -1) if m == 1 or m * vectors + min(m, vectors) < registers)
