"""Batch normalization over blocked images (skeleton/norm.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bppsa.codegen.blocked import native
from bppsa.errors import InputError, InputValueError
from bppsa.runtime.blocked.image import Image, Shape, empty
from bppsa.runtime.blocked.program import Place, Writer
from bppsa.runtime.blocked.step import Keep, Kept, Step, Wanted


class Moments(NamedTuple):
    """Of each channel, float64 [C]; of_batch: of this batch, else the running ones."""

    mean: Place
    rstd: Place
    of_batch: bool


class BatchNorm(Step):
    """parameters: scale [C] and shift [C], or None. module: whose running statistics are used and kept up."""

    reads_input = True

    def __init__(self, module: nn.BatchNorm1d | nn.BatchNorm2d, path: str, relu: bool) -> None:
        self.module, self.path, self.relu = module, path, relu
        self._numbers: tuple[tuple[float, ...], Tensor] | None = None

    def shape(self, *inputs: Shape) -> Shape:
        s = inputs[0]
        if self.depends()[0] and s.samples * s.pixels == 1:
            raise InputValueError(f"{self.path}: more than one value a channel is needed in training, and there is one")
        return s

    def depends(self) -> tuple[bool, bool]:
        """Whether this batch's statistics are used, and whether the running ones follow them."""
        training = self.module.training
        return training or self.module._buffers["running_mean"] is None, training and self.module.track_running_stats

    def brings(self, dtype: torch.dtype) -> Sequence[Tensor]:
        """Epsilon and how much of this batch the running statistics take, and these where they are used or kept up."""
        module, (of_batch, follow), part = self.module, self.depends(), 0.0
        mean, variance, count = (module._buffers[n] for n in ("running_mean", "running_var", "num_batches_tracked"))
        if follow:
            assert count is not None
            count.add_(1)
            part = 1 / float(count) if module.momentum is None else module.momentum
        numbers = self.numbers(module.eps, part)
        if of_batch and not follow:
            return (numbers,)
        assert mean is not None
        assert variance is not None
        for running in (mean, variance):
            if running.dtype is not dtype or not running.is_contiguous():
                raise InputError(f"{self.path}: its running statistics are not contiguous, or not {dtype} as its input")
        if follow:
            torch.autograd.graph.increment_version((mean, variance))
        return numbers, mean, variance

    def numbers(self, *numbers: float) -> Tensor:
        if self._numbers is None or self._numbers[0] != numbers:
            self._numbers = numbers, torch.tensor(numbers, dtype=torch.float64)
        return self._numbers[1]

    def forward(
        self, to: Writer, inputs: Sequence[Image], params: Sequence[Place | None], brought: Sequence[Place], keep: Keep
    ) -> tuple[Image, Moments]:
        (x,), (numbers, *running) = inputs, brought
        s, (of_batch, _) = x.shape, self.depends()
        out = empty(to, s, kept=keep.output)
        moments = Moments(*(to.take(s.channels, torch.float64, kept=keep.own) for _ in range(2)), of_batch)
        statistics = running or (None, None)
        to.call(
            native.images(to.dtype).norm,
            *(x.data, out.data, *params, *statistics, numbers, moments.mean, moments.rstd),
            *(s.channels, x.blocks, s.pixels, x.last, of_batch, self.relu, x.threads),
        )
        if not keep.own:
            to.free(moments.mean)
            to.free(moments.rstd)
        return out, moments

    def backward(
        self, to: Writer, g: Image, kept: Kept, params: Sequence[Place | None], wanted: Wanted
    ) -> tuple[Image | None]:
        (x,), (weight, _), moments = kept.inputs, params, kept.own
        assert x is not None
        s = x.shape
        to_x = empty(to, s) if wanted.inputs[0] else None
        to.call(
            native.images(to.dtype).norm_backward,
            *(g.data, x.data, weight, moments.mean, moments.rstd, to_x and to_x.data, *wanted.params),
            *(s.channels, x.blocks, s.pixels, x.last, moments.of_batch, x.threads),
        )
        return (to_x,)
