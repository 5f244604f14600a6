"""Pooling: maxima, and means over windows of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.codegen.blocked import native
from bppsa.codegen.blocked.window import Pair, Window
from bppsa.runtime import pool
from bppsa.runtime.blocked.image import Image, Shape, empty
from bppsa.runtime.blocked.step import Gradients, Kept, Wanted


class MaxPool:
    masks = reads_output = True  # where the maximum is zero, so is all that the mask could tell
    reads_input = False

    def __init__(self, window: Window) -> None:
        self.window = window
        w = window
        self._numbers = native.numbers([*w.size, *w.out, *w.kernel, *w.stride, *w.padding, *w.dilation])

    def shape(self, *inputs: Shape) -> Shape:
        return Shape(inputs[0].samples, inputs[0].channels, *self.window.out)

    def forward(
        self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool
    ) -> tuple[Image, tuple[Shape, Tensor] | None]:
        (x,) = inputs
        out = empty(self.shape(x.shape), x.data.dtype)
        places = pool.take(out.data.numel(), torch.uint8) if save else None
        kernels = native.images(x.data.dtype)
        kernels.max_pool(x.data, out.data, places, self._numbers, x.planes, x.threads)
        return out, None if places is None else (x.shape, places)

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        shape, places = kept.own
        to_x = empty(shape, g.data.dtype)
        mask = kept.output.data if wanted.rectified and kept.output else None
        kernels = native.images(g.data.dtype)
        kernels.max_pool_backward(g.data, to_x.data, places, mask, self._numbers, g.planes, to_x.threads)
        return Gradients((to_x,))


@dataclass(frozen=True)
class Means:
    """Output i of an axis is `shares[i]` times the sum over places `bounds[i]` of the input."""

    bounds: tuple[Pair, ...]
    shares: tuple[float, ...]


def adaptive(size: int, out: int) -> Means:
    bounds = [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
    return Means(tuple(bounds), tuple(1 / (b - a) for a, b in bounds))


def average(size: int, kernel: int, stride: int, padding: int, count_padding: bool) -> Means:
    starts = [i * stride - padding for i in range((size + 2 * padding - kernel) // stride + 1)]
    bounds = [(max(0, a), min(size, a + kernel)) for a in starts]
    return Means(tuple(bounds), tuple(1 / (kernel if count_padding else b - a) for a, b in bounds))


class MeanPool:
    masks = reads_input = reads_output = False

    def __init__(self, size: Pair, down: Means, across: Means) -> None:
        self.out = len(down.bounds), len(across.bounds)
        self._bounds = native.numbers([n for bound in (*down.bounds, *across.bounds) for n in bound])
        self._shares = torch.tensor([*down.shares, *across.shares], dtype=torch.float64)
        self._sizes = native.numbers([*size, *self.out])
        self.size = size

    def shape(self, *inputs: Shape) -> Shape:
        return Shape(inputs[0].samples, inputs[0].channels, *self.out)

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, None]:
        (x,) = inputs
        out = empty(self.shape(x.shape), x.data.dtype)
        self._run(x, out, transposed=False)
        return out, None

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        to_x = empty(Shape(g.shape.samples, g.shape.channels, *self.size), g.data.dtype)
        self._run(g, to_x, transposed=True)
        return Gradients((to_x,))

    def _run(self, source: Image, target: Image, *, transposed: bool) -> None:
        shares = self._shares.to(source.data.dtype)
        kernels, threads = native.images(source.data.dtype), (target if transposed else source).threads
        tables = self._bounds, shares, self._sizes
        kernels.mean_pool(source.data, target.data, *tables, source.planes, transposed, threads)
