"""Pooling: maxima, and means over windows of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bppsa.codegen.sparse_conv import native
from bppsa.codegen.sparse_conv.window import IntPair, Window
from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape, empty
from bppsa.runtime.sparse_conv.programs.step import RegionStep, SavedImages, StepOperands, Wanted


class Pooling(RegionStep):
    """out: the sizes of an image of its output."""

    out: IntPair

    def shape(self, *inputs: ImageShape) -> ImageShape:
        return ImageShape(inputs[0].samples, inputs[0].channels, *self.out)

    def reads(self, inputs: Sequence[bool], params: Sequence[bool]) -> tuple[Sequence[bool], Sequence[bool]]:
        return (inputs[0],), ()


class MaxPool(Pooling):
    masks = reads_output = True  # where the maximum is zero, so is all that the mask could tell

    def __init__(self, window: Window) -> None:
        self.window, self.out = window, window.out
        w = window
        self._numbers = torch.tensor([*w.size, *w.out, *w.kernel, *w.stride, *w.padding, *w.dilation])

    @property
    def quarters(self) -> bool:
        """Its windows are squares of two by two pixels that meet nowhere and leave nothing out."""
        w = self.window
        return w == Window(w.size, (2, 2), (2, 2)) and w.size[0] % 2 == w.size[1] % 2 == 0

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, Place | None]:
        (x,) = given.inputs
        out = empty(to, self.shape(x.shape), kept=given.keeps_output)
        places = to.take(out.count, torch.uint8, kept=True) if given.keeps_own else None
        to.call(native.images(to.dtype).max_pool, x.data, out.data, places, self._numbers, x.planes, x.threads)
        return out, places

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image]:
        mask = kept.output.data if wanted.rectified and kept.output else None
        return (self.spread(to, g, kept.own, mask),)

    def spread(self, to: Writer, g: Image, places: Place, mask: Place | None = None) -> Image:
        """The input's cotangent. mask: the output, where the input was rectified."""
        to_x = empty(to, ImageShape(g.shape.samples, g.shape.channels, *self.window.size))
        kernel = native.images(to.dtype).max_pool_backward
        to.call(kernel, g.data, to_x.data, places, mask, self._numbers, g.planes, to_x.threads)
        return to_x


@dataclass(frozen=True)
class Means:
    """Output i of an axis is `shares[i]` times the sum over places `bounds[i]` of the input."""

    bounds: tuple[IntPair, ...]
    shares: tuple[float, ...]


def adaptive(size: int, out: int) -> Means:
    bounds = [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]
    return Means(tuple(bounds), tuple(1 / (b - a) for a, b in bounds))


def average(size: int, kernel: int, stride: int, padding: int, count_padding: bool) -> Means:
    starts = [i * stride - padding for i in range((size + 2 * padding - kernel) // stride + 1)]
    bounds = [(max(0, a), min(size, a + kernel)) for a in starts]
    return Means(tuple(bounds), tuple(1 / (kernel if count_padding else b - a) for a, b in bounds))


class MeanPool(Pooling):
    def __init__(self, size: IntPair, down: Means, across: Means) -> None:
        self.out = len(down.bounds), len(across.bounds)
        self._bounds = torch.tensor([*down.bounds, *across.bounds])
        self._shares = torch.tensor([*down.shares, *across.shares], dtype=torch.float64)
        self._sizes = torch.tensor([*size, *self.out])
        self.size, self.means = size, (down, across)

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, None]:
        (x,) = given.inputs
        out = empty(to, self.shape(x.shape), kept=given.keeps_output)
        self._write(to, x, out, transposed=False)
        return out, None

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image]:
        to_x = empty(to, ImageShape(g.shape.samples, g.shape.channels, *self.size))
        self._write(to, g, to_x, transposed=True)
        return (to_x,)

    def _write(self, to: Writer, source: Image, target: Image, *, transposed: bool) -> None:
        tables = self._bounds, self._shares.to(to.dtype), self._sizes
        threads = (target if transposed else source).threads
        to.call(
            native.images(to.dtype).mean_pool, source.data, target.data, *tables, source.planes, transposed, threads
        )
