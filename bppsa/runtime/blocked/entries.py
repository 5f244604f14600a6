"""The kept entries of a weight, sorted as the sweeps read them: what depends on the mask and the geometry alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from bppsa.codegen.blocked.native import LANES, is_wide
from bppsa.codegen.blocked.print_conv import PIXELS
from bppsa.codegen.blocked.window import Sweep, Window
from bppsa.errors import Reason, Unsupported
from bppsa.plan.sparse import LEAST_DENSITY

NEAR = 16 << 10  # bytes of the nearest cache that a chunk of channels may take
LEAST_PIXELS = 8  # of a tile: fewer do not pay for putting their sums aside between chunks


@dataclass(frozen=True)
class Rows:
    """A row for each channel of a sweep's target, in it for each chunk of channels a run for each tap (skeleton/conv.h).

    at: int32 [rows * chunks * taps + 1]. offsets: int32 [E], where in its source each entry reads, in reals.
    places: int32 [E], where in the weight its value is.
    """

    at: Tensor
    offsets: Tensor
    places: Tensor
    rows: int
    chunks: int

    @property
    def count(self) -> int:
        return self.places.numel()


class Entries:
    """Both orders of one weight's kept entries. order: int32 [E], where in `forward` each entry of `backward` is;
    row_size: elements of the weight for each output channel."""

    def __init__(self, mask: Tensor, window: Window, groups: int, dtype: torch.dtype) -> None:
        """mask: bool [N, C / groups, kernel height, kernel width]; True where a weight is kept."""
        out, inner, size = mask.shape[0] // groups, mask.shape[1], mask[0, 0].numel()
        kept = mask.detach().contiguous().numpy().reshape(groups, out, inner, size)
        steps = out * inner * size, inner * size, size
        self.forward = rows_of(kept, steps, window.forward, window, dtype)
        steps = steps[0], steps[2], steps[1]
        self.backward = rows_of(kept.swapaxes(1, 2), steps, window.backward, window, dtype)
        self.row_size = mask[0].numel()
        self.order = order_of(self.forward.places, self.backward.places)


def order_of(places: Tensor, wanted: Tensor) -> Tensor:
    """int32: for each of `wanted`, where it is in `places`, which has the same numbers."""
    by_place = torch.argsort(places)
    order = torch.empty_like(by_place)
    order[torch.argsort(wanted)] = by_place
    return order.to(torch.int32)


def rows_of(mask: numpy.ndarray, steps: tuple[int, int, int], sweep: Sweep, window: Window, dtype: torch.dtype) -> Rows:
    """mask: [groups, rows of a group, columns of a group, elements of the kernel]; steps: in the weight, between its
    groups, rows and columns."""
    order = numpy.array([tap.row * window.kernel[1] + tap.column for tap in sweep.taps])
    groups, rows, columns, _ = mask.shape
    width = chunk_of(sweep, columns, mask.mean(), dtype)
    chunks = -(-columns // width)
    kept = numpy.zeros((groups, rows, len(order), chunks * width), dtype=bool)
    kept[..., :columns] = mask.swapaxes(2, 3)[:, :, order]
    kept = numpy.ascontiguousarray(kept.reshape(groups, rows, len(order), chunks, width).swapaxes(2, 3))
    run, column = numpy.divmod(numpy.flatnonzero(kept), width)
    row, tap = numpy.divmod(run, len(order))
    row, chunk = numpy.divmod(row, chunks)
    group, row = numpy.divmod(row, rows)
    column += chunk * width
    pixels = numpy.array([tap.y * sweep.source[1] + tap.x for tap in sweep.taps], dtype=numpy.int64)
    plane = sweep.source[0] * sweep.source[1]
    most = numpy.iinfo(numpy.int32).max
    if max(groups * columns * plane * LANES[dtype], mask.size) > most:
        raise Unsupported(Reason("a weight, or a block of images, of more than 2^31 numbers"))
    offsets = ((group * columns + column) * plane + pixels[tap]) * LANES[dtype]
    at = numpy.zeros(groups * rows * chunks * len(order) + 1, dtype=numpy.int32)
    at[1:] = numpy.cumsum(numpy.bincount(run, minlength=len(at) - 1))
    places = group * steps[0] + row * steps[1] + column * steps[2] + order[tap]
    begins, read, where = (torch.from_numpy(a.astype(numpy.int32)) for a in (at, offsets, places))
    return Rows(begins, read, where, groups * rows, chunks)


def chunk_of(sweep: Sweep, channels: int, density: float, dtype: torch.dtype) -> int:
    """How many channels of the source a row goes through at a time: all, or as many as a tile of fits the near cache."""
    pixels, read = sweep.reach(PIXELS[is_wide()])
    fitting = NEAR // (read * LANES[dtype] * dtype.itemsize)
    pays = density >= LEAST_DENSITY and pixels >= LEAST_PIXELS
    return fitting if pays and 0 < fitting < channels else channels
