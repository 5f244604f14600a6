"""A convolution, or a linear layer, by the kept entries of its weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.blocked import native
from bppsa.codegen.blocked.window import Window
from bppsa.codegen.native import available_threads
from bppsa.runtime import pool
from bppsa.runtime.blocked.entries import Entries, Rows
from bppsa.runtime.blocked.image import Image, Shape, empty
from bppsa.runtime.blocked.step import Gradients, Kept, Wanted

ENTRIES_PER_THREAD = 4_000
PRODUCTS_PER_THREAD = 400_000  # multiply-adds; fewer are not worth waking another thread for

Filled = tuple[Entries, int]  # and the generation of the values in them


class Conv:
    """parameters: weight [N, C / groups, height, width] or [N, C], bias [N] or None. entries: those kept at present."""

    masks = reads_input = True
    reads_output = False

    def __init__(self, window: Window, channels: int, entries: Callable[[], Entries], relu: bool) -> None:
        self.window, self.channels, self.entries, self.relu = window, channels, entries, relu

    def shape(self, *inputs: Shape) -> Shape:
        return Shape(inputs[0].samples, self.channels, *self.window.out)

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, Filled]:
        (x,), (weight, bias), entries = inputs, params, self.entries()
        out, rows = empty(self.shape(x.shape), x.data.dtype), entries.forward
        kernels = native.conv(self.window, x.data.dtype)
        threads = threads_for(rows, out)
        with entries.lock:
            fill(kernels, entries, weight)
            generation = entries.generation
            sizes = rows.rows, x.shape.channels, x.plane, out.plane, x.blocks
            kernels.forward(x.data, out.data, rows.at, rows.entries, bias, *sizes, self.relu, threads)
        return out, (entries, generation)

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        (x,), (weight, bias), (entries, _) = kept.inputs, params, kept.own
        assert x is not None
        assert weight is not None
        to_x = self.to_input(g, x, weight, kept.own, wanted.rectified) if wanted.inputs[0] else None
        to_weight = self.to_weight(g, x, weight, entries) if wanted.params[0] else None
        to_bias = channel_sums(g, bias) if bias is not None and wanted.params[1] else None
        return Gradients((to_x,), (to_weight, to_bias))

    def to_input(self, g: Image, x: Image, weight: Tensor, filled: Filled, rectified: bool) -> Image:
        entries, generation = filled
        out, rows = empty(x.shape, x.data.dtype), entries.backward
        kernels = native.conv(self.window, x.data.dtype)
        with entries.lock:
            if entries.generation != generation:  # another forward has been there, maybe with other values
                fill(kernels, entries, weight)
            order = entries.order, entries.forward.entries, rows.count
            kernels.reorder(rows.entries, *order, threads_for_entries(rows))
            sizes = rows.rows, g.shape.channels, g.plane, out.plane, g.blocks
            mask = x.data if rectified else None
            kernels.backward(g.data, out.data, rows.at, rows.entries, mask, *sizes, threads_for(rows, g))
        return out

    def to_weight(self, g: Image, x: Image, weight: Tensor, entries: Entries) -> Tensor:
        """[as the weight], zero where nothing is kept"""
        rows = entries.forward
        gradient = pool.take(weight.numel(), weight.dtype).view(weight.shape)
        threads = threads_for(rows, g)
        work = pool.take((rows.count + threads * x.lanes) * x.lanes, weight.dtype)
        sizes = weight[0].numel(), rows.rows, x.shape.channels, x.plane, g.plane, x.blocks
        native.conv(self.window, weight.dtype).weights(
            *(x.data, g.data, rows.at, rows.entries, rows.places, gradient),
            *(*sizes, threads, work),
        )
        return gradient


def fill(kernels: Any, entries: Entries, weight: Tensor | None) -> None:
    """Write the weight's values of now into the entries; under their lock."""
    assert weight is not None
    rows = entries.forward
    kernels.gather(rows.entries, rows.places, weight.detach().contiguous(), rows.count, threads_for_entries(rows))
    entries.generation += 1


def threads_for_entries(rows: Rows) -> int:
    return max(1, min(available_threads(), rows.count // ENTRIES_PER_THREAD))


def threads_for(rows: Rows, out: Image) -> int:
    products = rows.count * out.blocks * out.plane
    return max(1, min(available_threads(), products // PRODUCTS_PER_THREAD))


def channel_sums(g: Image, like: Tensor) -> Tensor:
    """[C], over samples and pixels"""
    sums = torch.empty_like(like)
    native.images(g.data.dtype).channel_sums(g.data, sums, g.shape.channels, g.blocks, g.shape.pixels, g.threads)
    return sums
