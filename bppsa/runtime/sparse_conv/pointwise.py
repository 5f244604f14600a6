"""Pointwise functions of blocked images, and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.language.ir import Access, Expr, Kernel, Op, load
from bppsa.codegen.sparse_conv import native
from bppsa.codegen.sparse_conv.elementwise import Elementwise, kernel
from bppsa.runtime.sparse_conv.image import Image, Shape, empty, pack
from bppsa.runtime.sparse_conv.program import Place, Writer
from bppsa.runtime.sparse_conv.step import Keep, RegionStep, SavedImages, Wanted


class Pointwise(RegionStep):
    """Any number of images of one shape."""

    reads_input = True

    def __init__(self, function: Elementwise) -> None:
        self.function = function

    def kernels(self, dtype: torch.dtype) -> tuple[Kernel, Kernel]:
        lanes = native.LANES[dtype]
        return self.function.forward(lanes), self.function.backward(lanes)

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(
        self, to: Writer, inputs: Sequence[Image], params: Sequence[Place | None], brought: Sequence[Place], keep: Keep
    ) -> tuple[Image, None]:
        out, (ahead, _) = empty(to, inputs[0].shape, kept=keep.output), self.kernels(to.dtype)
        to.call(native.pointwise(ahead, to.dtype), *(x.data for x in inputs), out.data, out.count, out.threads)
        return out, None

    def backward(
        self, to: Writer, g: Image, kept: SavedImages, params: Sequence[Place | None], wanted: Wanted
    ) -> tuple[Image | None, ...]:
        inputs, (_, back) = [x for x in kept.inputs if x is not None], self.kernels(to.dtype)
        found = {i: empty(to, g.shape) for i in self.function.reached}
        places = [image.data for image in (g, *inputs, *found.values())]
        to.call(native.pointwise(back, to.dtype), *places, g.count, g.threads)
        for i in [i for i in found if not wanted.inputs[i]]:
            to.free(found.pop(i).data)
        return tuple(map(found.get, range(len(inputs))))


@cache
def product(dtype: torch.dtype) -> Kernel:
    value = Expr(Op.MUL, load(Access("a")), load(Access("b")))
    return kernel("product", ["a", "b"], {"y": value}, native.LANES[dtype])


class Dropout(RegionStep):
    """In training: the draws are PyTorch's, of single numbers or of whole channels, in PyTorch's order. sizes: of the
    tensor, [B, C] or [B, C, H, W]."""

    def __init__(self, p: float, channels: bool, sizes: tuple[int, ...]) -> None:
        self.p, self.sizes = p, sizes
        self.drawn = (*sizes[:2], 1, 1) if channels else sizes

    def kernels(self, dtype: torch.dtype) -> tuple[Kernel]:
        return (product(dtype),)

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def brings(self, dtype: torch.dtype, extras: Sequence[Any]) -> Sequence[Tensor]:
        noise = torch.empty(self.drawn, dtype=dtype).bernoulli_(1 - self.p).div_(1 - self.p)
        return (noise.expand(self.sizes).contiguous(),)

    def forward(
        self, to: Writer, inputs: Sequence[Image], params: Sequence[Place | None], brought: Sequence[Place], keep: Keep
    ) -> tuple[Image, Image]:
        (x,), (noise,) = inputs, brought
        out, factors = empty(to, x.shape, kept=keep.output), pack(to, noise, x.shape, repeat=True, kept=keep.own)
        self.multiply(to, x, factors, out)
        if not keep.own:
            to.free(factors.data)
        return out, factors

    def backward(
        self, to: Writer, g: Image, kept: SavedImages, params: Sequence[Place | None], wanted: Wanted
    ) -> tuple[Image]:
        to_x = empty(to, g.shape)
        self.multiply(to, g, kept.own, to_x)
        return (to_x,)

    def multiply(self, to: Writer, a: Image, b: Image, out: Image) -> None:
        kernel = native.pointwise(product(to.dtype), to.dtype)
        to.call(kernel, a.data, b.data, out.data, out.count, out.threads)
