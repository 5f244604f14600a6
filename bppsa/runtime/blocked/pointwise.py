"""Pointwise functions of blocked images, and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.codegen.blocked.elementwise import Elementwise, kernel
from bppsa.codegen.blocked.native import LANES
from bppsa.codegen.ir import Access, Expr, Kernel, Op, load
from bppsa.codegen.native import REAL, NativeKernel
from bppsa.runtime.blocked.image import Image, Shape, empty, pack
from bppsa.runtime.blocked.step import Gradients, Kept, Wanted


class Rows:
    """Kernels on the cache lines of images, for either dtype."""

    def __init__(self, kernels: dict[torch.dtype, Kernel]) -> None:
        self.kernels = kernels
        self._native: dict[torch.dtype, NativeKernel] = {}

    def __call__(self, *images: Image) -> None:
        dtype = images[0].data.dtype
        native = self._native.get(dtype) or self._native.setdefault(
            dtype, NativeKernel(self.kernels[dtype], REAL[dtype])
        )
        lines = [image.data.view(1, -1, LANES[dtype]) for image in images]
        native(lines, steps=1, rows=lines[0].shape[1])


def product() -> Rows:
    value = Expr(Op.MUL, load(Access("a")), load(Access("b")))
    return Rows({dtype: kernel("product", ["a", "b"], {"y": value}, lanes) for dtype, lanes in LANES.items()})


class Pointwise:
    """Any number of images of one shape."""

    masks = reads_output = False
    reads_input = True

    def __init__(self, function: Elementwise) -> None:
        self.function = function
        self.ahead = Rows({dtype: function.forward(lanes) for dtype, lanes in LANES.items()})
        self.back = Rows({dtype: function.backward(lanes) for dtype, lanes in LANES.items()})

    @property
    def rows(self) -> tuple[Rows, ...]:
        return self.ahead, self.back

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, None]:
        out = empty(inputs[0].shape, inputs[0].data.dtype)
        self.ahead(*inputs, out)
        return out, None

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        inputs = [x for x in kept.inputs if x is not None]
        found = {i: empty(g.shape, g.data.dtype) for i in self.function.reached}
        self.back(g, *inputs, *found.values())
        return Gradients(tuple(map(found.get, range(len(inputs)))))


class Dropout:
    """In training: the draws are PyTorch's, of single numbers or of whole channels, in PyTorch's order."""

    masks = reads_input = reads_output = False

    def __init__(self, p: float, channels: bool, dims: int) -> None:
        self.p, self.channels, self.dims = p, channels, dims
        self.product = product()

    @property
    def rows(self) -> tuple[Rows, ...]:
        return (self.product,)

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, Image]:
        (x,) = inputs
        s, dtype = x.shape, x.data.dtype
        sizes = s.samples, s.channels, s.height, s.width
        drawn = (*sizes[:2], 1, 1) if self.channels else sizes[: self.dims]
        noise = torch.empty(drawn, dtype=dtype).bernoulli_(1 - self.p).div_(1 - self.p)
        factors, out = pack(noise.view(*drawn[:2], *drawn[2:] or (1, 1)).expand(sizes), repeat=True), empty(s, dtype)
        self.product(x, factors, out)
        return out, factors

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        to_x = empty(g.shape, g.data.dtype)
        self.product(g, kept.own, to_x)
        return Gradients((to_x,))
