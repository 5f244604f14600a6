"""The kept entries of a weight, sorted as the sweeps read them: what depends on the mask and the geometry alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from bppsa.codegen.sparse_conv.native import LANES
from bppsa.codegen.sparse_conv.print_conv import pixels_held
from bppsa.codegen.sparse_conv.window import ConvSweep, Window
from bppsa.errors import Unsupported
from bppsa.plan.sparse import LEAST_DENSITY

# Bytes of the nearest cache that a chunk of channels takes where every weight is kept. The fewer are kept, the longer a
# chunk has to be to pay for its begin and its end, beyond the cache even: both costs balance at the density's root.
NEAR = 11 << 10
# Density from which a weight is read fastest from its begin to its end, as most of its cache lines hold an entry;
# below, lines are fetched one by one, in any order that stays within a row.
IN_ORDER = 0.06
LEAST_PIXELS = 8  # of a tile: fewer do not pay for putting their sums aside between chunks
SPARSE = 16  # one in so many keys: comparing them is faster than marks in a table
MOST = numpy.iinfo(numpy.int32).max
TOO_LARGE = "a weight, or a block of images, of more than 2^31 numbers"


@dataclass(frozen=True)
class Rows:
    """A row for each channel of a sweep's target, in it for each chunk of channels a run for each tap.

    That is how skeleton/images/conv.h reads them.

    at: int32 [rows * chunks * taps + 1]. offsets: int32 [E], where in its source each entry reads, in reals.
    """

    at: Tensor
    offsets: Tensor
    rows: int
    chunks: int

    @property
    def count(self) -> int:
        return self.offsets.numel()


class Entries:
    """Both orders of one weight's kept entries. order: int32 [E], where in `forward` each entry of `backward` is.

    row_size: elements of the weight for each output channel. places: int32 [E], where in the weight they are, as its
    memory is walked: the n-th is entry rank[n] of `forward`, int32 [E], or entry n where rank is None.
    """

    def __init__(self, mask: Tensor, window: Window, groups: int, dtype: torch.dtype) -> None:
        """mask: bool [N, C / groups, kernel height, kernel width]; True where a weight is kept."""
        out, inner, size = mask.shape[0] // groups, mask.shape[1], mask[0, 0].numel()
        if mask.numel() > MOST:
            raise Unsupported(TOO_LARGE)
        places = numpy.flatnonzero(mask.detach().contiguous().numpy()).astype(numpy.int32)
        channel, rest = split(places, inner * size)
        group, row = split(channel, out)
        column, element = split(rest, size)
        kept = Coordinates(places, group, row, column, element)
        self.forward, order = rows_of(kept, (groups, out, inner), window.forward, window, dtype)
        kept = Coordinates(places, group, column, row, element)
        self.backward, backward = rows_of(kept, (groups, inner, out), window.backward, window, dtype)
        self.row_size = mask[0].numel()
        rank = numpy.empty_like(order)
        rank[order] = numpy.arange(len(order), dtype=numpy.int32)
        self.order = torch.from_numpy(rank[backward])
        in_order = len(places) >= IN_ORDER * mask.numel()
        self.places = torch.from_numpy(places if in_order else places[order])
        self.rank = torch.from_numpy(rank) if in_order else None


class Coordinates(NamedTuple):
    """The kept entries in the weight's own order, int32 [E] each: where in the weight, and of which group, row and
    column of a sweep, and element of the kernel."""

    places: numpy.ndarray
    group: numpy.ndarray
    row: numpy.ndarray
    column: numpy.ndarray
    element: numpy.ndarray


def split(numbers: numpy.ndarray, by: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Quotients and remainders; several times as fast as divmod."""
    quotients = numbers // by
    return quotients, numbers - quotients * by


def rows_of(
    kept: Coordinates, sizes: tuple[int, int, int], sweep: ConvSweep, window: Window, dtype: torch.dtype
) -> tuple[Rows, numpy.ndarray]:
    """The rows, and where each entry of them is among `kept`. sizes: groups, rows and columns of one."""
    groups, rows, columns = sizes
    count, taps = len(kept.places), len(sweep.taps)
    tap_of = numpy.empty(taps, dtype=numpy.int32)
    tap_of[[tap.row * window.kernel[1] + tap.column for tap in sweep.taps]] = numpy.arange(taps)
    pixels = numpy.array([tap.y * sweep.source[1] + tap.x for tap in sweep.taps], dtype=numpy.int64)
    density = count / max(1, groups * rows * columns * taps)
    width = chunk_of(sweep, columns, density, dtype)
    chunks, plane = -(-columns // width), sweep.source[0] * sweep.source[1]
    if max(groups * columns * plane * LANES[dtype], groups * rows * chunks * taps * width) > MOST:
        raise Unsupported(TOO_LARGE)
    tap = tap_of[kept.element]
    chunk, within = split(kept.column, width)
    run = ((kept.group * rows + kept.row) * chunks + chunk) * taps + tap
    order = order_of(run * width + within, groups * rows * chunks * taps * width)
    offsets = ((kept.group * columns + kept.column) * plane + pixels[tap]) * LANES[dtype]
    at = numpy.zeros(groups * rows * chunks * taps + 1, dtype=numpy.int32)
    at[1:] = numpy.cumsum(numpy.bincount(run, minlength=len(at) - 1))
    read = torch.from_numpy(offsets[order].astype(numpy.int32))
    return Rows(torch.from_numpy(at), read, groups * rows, chunks), order


def order_of(keys: numpy.ndarray, most: int) -> numpy.ndarray:
    """int32: how to sort keys that differ, below `most`."""
    if len(keys) < most / SPARSE:
        return torch.argsort(torch.from_numpy(keys)).to(torch.int32).numpy()
    marked, where = numpy.zeros(most, dtype=bool), numpy.empty(most, dtype=numpy.int32)
    marked[keys] = True
    where[keys] = numpy.arange(len(keys), dtype=numpy.int32)
    return where[numpy.flatnonzero(marked)]


def chunk_of(sweep: ConvSweep, channels: int, density: float, dtype: torch.dtype) -> int:
    """How many channels of the source a row goes through at a time: all, or as many of a tile as fit the near cache."""
    if density < LEAST_DENSITY:
        return channels
    pixels, read = sweep.reach(pixels_held())
    fitting = int(NEAR / math.sqrt(density)) // (read * LANES[dtype] * dtype.itemsize)
    return fitting if pixels >= LEAST_PIXELS and 0 < fitting < channels else channels
