"""Batch normalization over blocked images (skeleton/images/norm.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa.codegen.sparse_conv import native
from bppsa.errors import Unsupported
from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape, empty
from bppsa.runtime.sparse_conv.programs.step import RegionStep, SavedImages, StepOperands, Wanted


class Moments(NamedTuple):
    """Mean and variance of each channel, float64 [C]; of_batch: of this batch, else the running ones."""

    mean: Place
    rstd: Place
    of_batch: bool


class BatchNorm(RegionStep):
    """parameters: scale [C] and shift [C], or None. extras: running mean [C] and variance [C], or None, momentum and
    epsilon. of_batch: this batch's statistics are used, and the running ones, where there are any, follow them."""

    reads_input = True

    def __init__(self, of_batch: bool, follow: bool) -> None:
        self.of_batch, self.follow, self.relu = of_batch, follow, False
        self._numbers: tuple[tuple[float, ...], Tensor] | None = None

    def shape(self, *inputs: ImageShape) -> ImageShape:
        s = inputs[0]
        if self.of_batch and s.samples * s.pixels == 1:
            raise Unsupported("a batch norm in training needs more than one value a channel")
        return s

    def brings(self, dtype: torch.dtype, extras: Sequence[Any]) -> Sequence[Tensor]:
        """Epsilon and momentum, and the running statistics where they are used or kept up."""
        mean, variance, momentum, eps = extras
        numbers = self.numbers(eps, momentum if self.follow else 0.0)
        if self.of_batch and not self.follow:
            return (numbers,)
        if self.follow:
            torch.autograd.graph.increment_version((mean, variance))
        return numbers, mean, variance

    def reads_again(self, brought: Sequence[Tensor]) -> Sequence[Tensor]:
        return () if self.of_batch else brought[1:]

    def reads(self, inputs: Sequence[bool], params: Sequence[bool]) -> tuple[Sequence[bool], Sequence[bool]]:
        return (True,), (True, False)

    def numbers(self, *numbers: float) -> Tensor:
        found = self._numbers  # another thread may put its own there
        if found is None or found[0] != numbers:
            found = self._numbers = numbers, torch.tensor(numbers, dtype=torch.float64)
        return found[1]

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, Moments]:
        (x,), (numbers, *running) = given.inputs, given.brought
        s, of_batch = x.shape, self.of_batch
        out = empty(to, s, kept=given.keeps_output)
        mean, rstd = (to.take(s.channels, torch.float64, kept=given.keeps_own) for _ in range(2))
        moments = Moments(mean, rstd, of_batch)
        statistics = running or (None, None)
        to.call(
            native.images(to.dtype).norm,
            *(x.data, out.data, *given.params, *statistics, numbers, moments.mean, moments.rstd),
            *(s.channels, x.blocks, s.pixels, x.last, of_batch, self.relu, x.threads),
        )
        if not given.keeps_own:
            to.free(moments.mean)
            to.free(moments.rstd)
        return out, moments

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image | None]:
        (x,), (weight, _), moments = kept.inputs, kept.params, kept.own
        assert x is not None
        s = x.shape
        to_x = empty(to, s) if wanted.inputs[0] else None
        to.call(
            native.images(to.dtype).norm_backward,
            *(g.data, x.data, weight, moments.mean, moments.rstd, to_x and to_x.data, *wanted.params),
            *(s.channels, x.blocks, s.pixels, x.last, moments.of_batch, x.threads),
        )
        return (to_x,)
