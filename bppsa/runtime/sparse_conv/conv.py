"""A convolution, or a linear layer, by the kept entries of its weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa.codegen.cpu.native import threads_sharing
from bppsa.codegen.sparse_conv import native
from bppsa.codegen.sparse_conv.window import Window
from bppsa.plan.sparse import gives_kept_alone
from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.sparse_conv.entries import Entries, Rows
from bppsa.runtime.sparse_conv.pooling import MaxPool
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape, empty
from bppsa.runtime.sparse_conv.programs.step import RegionStep, SavedImages, StepOperands, Wanted

ENTRIES_PER_THREAD = 4_000
PRODUCTS_PER_THREAD = 400_000  # multiply-adds; fewer are not worth waking another thread for


class UsedEntries(NamedTuple):
    """The entries that a forward has used, and where their values are. winners: those of its pool."""

    entries: Entries
    data: Place
    winners: Place | None


class Conv(RegionStep):
    """parameters: weight [N, C / groups, height, width] or [N, C], bias [N] or None. entries: those kept at present.
    pool: of its own output, of which then nothing else is written."""

    masks = reads_input = True

    def __init__(self, window: Window, channels: int, entries: Callable[[], Entries]) -> None:
        self.window, self.channels, self.entries, self.relu = window, channels, entries, False
        self.pool: MaxPool | None = None

    def pool_by(self, pool: MaxPool) -> None:
        self.pool, self.window = pool, replace(self.window, pool=pool.window.kernel[0])

    def shape(self, *inputs: ImageShape) -> ImageShape:
        whole = ImageShape(inputs[0].samples, self.channels, *self.window.out)
        return self.pool.shape(whole) if self.pool else whole

    def depends(self) -> Entries:
        return self.entries()

    def reads(self, inputs: Sequence[bool], params: Sequence[bool]) -> tuple[Sequence[bool], Sequence[bool]]:
        return (params[0],), (inputs[0], False)

    def places(self, own: UsedEntries) -> Tensor | None:
        entries, rows = own.entries, own.entries.forward
        return entries.places if gives_kept_alone(rows.count, rows.rows * entries.row_size) else None

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, UsedEntries]:
        (x,), (weight, bias), entries = given.inputs, given.params, self.entries()
        out, rows = empty(to, self.shape(x.shape), kept=given.keeps_output), entries.forward
        kernels = native.conv(self.window, to.dtype)
        winners = to.take(out.count, torch.uint8, kept=True) if self.pool and given.keeps_own else None
        values = UsedEntries(entries, to.take(rows.count, kept=given.keeps_own), winners)
        walk = entries.places, entries.rank
        to.call(kernels.gather, values.data, *walk, weight, rows.count, threads_for_entries(rows))
        sizes = rows.rows, rows.chunks, x.shape.channels, x.plane, out.plane, x.blocks
        to.call(
            kernels.forward,
            *(x.data, out.data, winners, rows.at, rows.offsets, values.data, bias),
            *(*sizes, self.relu, self.threads(rows, x)),
        )
        if not given.keeps_own:
            to.free(values.data)
        return out, values

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image | None]:
        (x,), (to_weight, to_bias) = kept.inputs, wanted.params
        assert x is not None
        out = self.to_input(to, g, x, kept.own, wanted.rectified) if wanted.inputs[0] else None
        if to_weight is not None:
            self.to_weight(to, g, x, kept.own, to_weight, to_bias, wanted.compact)
        elif to_bias is not None:
            kernel = native.images(to.dtype).channel_sums
            to.call(kernel, g.data, to_bias, g.shape.channels, g.blocks, g.shape.pixels, g.threads)
        return (out,)

    def to_input(self, to: Writer, g: Image, x: Image, values: UsedEntries, rectified: bool) -> Image:
        entries = values.entries
        out, rows = empty(to, x.shape), entries.backward
        kernels = native.conv(self.window, to.dtype)
        whole = self.pool.spread(to, g, winners_of(values)) if self.pool else g
        transposed = to.take(rows.count)
        to.call(kernels.reorder, transposed, entries.order, values.data, rows.count, threads_for_entries(rows))
        sizes = rows.rows, rows.chunks, whole.shape.channels, whole.plane, out.plane, whole.blocks
        mask = x.data if rectified else None
        to.call(
            kernels.backward,
            *(whole.data, out.data, rows.at, rows.offsets, transposed, mask, *sizes, self.threads(rows, x)),
        )
        to.free(transposed)
        if whole is not g:
            to.free(whole.data)
        return out

    def to_weight(
        self, to: Writer, g: Image, x: Image, values: UsedEntries, weight: Place, bias: Place | None, compact: bool
    ) -> None:
        """All of the weight's gradient, zero where nothing is kept, or that of the entries alone; and the bias's."""
        entries, winners = values.entries, values.winners
        rows, size = entries.forward, entries.row_size
        kernels, threads = native.conv(self.window, to.dtype), self.threads(rows, x)
        work = to.take(threads * native.weights_room(kernels, size))
        sizes = size, rows.rows, rows.chunks, x.shape.channels, x.plane, g.plane, x.blocks
        to.call(
            kernels.weights,
            *(x.data, g.data, winners, rows.at, rows.offsets, entries.places, entries.rank, weight, bias),
            *(*sizes, compact, threads, work),
        )
        to.free(work)

    def threads(self, rows: Rows, x: Image) -> int:
        """A row takes about as long to be written, or read, as one of its entries."""
        products = (rows.count + rows.rows) * x.blocks * x.lanes * math.prod(self.window.out)
        return threads_sharing(products, PRODUCTS_PER_THREAD)


def winners_of(values: UsedEntries) -> Place:
    assert values.winners is not None, "a forward for a backward keeps them"
    return values.winners


def threads_for_entries(rows: Rows) -> int:
    return threads_sharing(rows.count, ENTRIES_PER_THREAD)
