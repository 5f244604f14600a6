"""Batch normalization over blocked images; statistics and their gradients are summed in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bppsa.codegen.blocked import native
from bppsa.errors import InputValueError
from bppsa.runtime.blocked.image import Image, Shape, empty
from bppsa.runtime.blocked.step import Gradients, Kept, Wanted


class Moments(NamedTuple):
    """Of each channel, float64 [C]; of_batch: of this batch, else the running ones."""

    mean: Tensor
    rstd: Tensor
    of_batch: bool


class BatchNorm:
    """parameters: scale [C] and shift [C], or None. module: whose running statistics are used and kept up."""

    masks = reads_output = False
    reads_input = True

    def __init__(self, module: nn.BatchNorm1d | nn.BatchNorm2d, path: str, relu: bool) -> None:
        self.module, self.path, self.relu = module, path, relu

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, Moments]:
        (x,), (weight, bias) = inputs, params
        moments = self.moments(x)
        scale = moments.rstd if weight is None else moments.rstd * weight.detach().double()
        shift = -moments.mean * scale if bias is None else bias.detach().double() - moments.mean * scale
        out, dtype, s = empty(x.shape, x.data.dtype), x.data.dtype, x.shape
        sizes = s.channels, x.blocks, s.pixels, self.relu, x.threads
        native.images(dtype).scale(x.data, out.data, scale.to(dtype), shift.to(dtype), *sizes)
        return out, moments

    def moments(self, x: Image) -> Moments:
        module, s = self.module, x.shape
        if not module.training and module.running_mean is not None and module.running_var is not None:
            mean, variance = module.running_mean.double(), module.running_var.double()
            return Moments(mean, torch.rsqrt(variance + module.eps), of_batch=False)
        count = s.samples * s.pixels
        if count == 1:
            raise InputValueError(f"{self.path}: more than one value a channel is needed in training, and there is one")
        mean, variance = torch.empty(2, s.channels, dtype=torch.float64)
        kernels = native.images(x.data.dtype)
        kernels.moments(x.data, mean, variance, s.channels, x.blocks, s.pixels, x.last, x.threads)
        if module.training and module.track_running_stats:
            self.keep(mean, variance * (count / (count - 1)))
        return Moments(mean, torch.rsqrt(variance + module.eps), of_batch=True)

    def keep(self, mean: Tensor, variance: Tensor) -> None:
        module = self.module
        assert module.num_batches_tracked is not None
        module.num_batches_tracked.add_(1)
        momentum = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
        for running, new in ((module.running_mean, mean), (module.running_var, variance)):
            assert running is not None
            running.mul_(1 - momentum).add_(new.to(running.dtype), alpha=momentum)

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        (x,), (weight, bias) = kept.inputs, params
        moments: Moments = kept.own
        assert x is not None
        dtype, s = x.data.dtype, x.shape
        sizes = s.channels, x.blocks, s.pixels, x.last, x.threads
        plain, weighted = torch.empty(2, s.channels, dtype=torch.float64)
        kernels = native.images(dtype)
        kernels.norm_sums(g.data, x.data, moments.mean, plain, weighted, *sizes)
        to_x = None
        if wanted.inputs[0]:
            scale = moments.rstd if weight is None else moments.rstd * weight.detach().double()
            slope = torch.zeros_like(scale)
            offset = torch.zeros_like(scale)
            if moments.of_batch:
                count = s.samples * s.pixels
                slope, offset = -scale * moments.rstd.square() * weighted / count, -scale * plain / count
            to_x = empty(s, dtype)
            factors = [t.to(dtype) for t in (scale, slope, offset)]
            kernels.norm_backward(g.data, x.data, moments.mean, to_x.data, *factors, *sizes)
        to_weight = (weighted * moments.rstd).to(dtype) if weight is not None and wanted.params[0] else None
        to_bias = plain.to(dtype) if bias is not None and wanted.params[1] else None
        return Gradients((to_x,), (to_weight, to_bias))
