"""Pointwise functions of blocked images, and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.language.expr import Access, Expr, Op, const, load
from bppsa.codegen.language.ir import Kernel
from bppsa.codegen.sparse_conv import native
from bppsa.codegen.sparse_conv.elementwise import Elementwise, kernel
from bppsa.common.chain import HANDED_ON, Role
from bppsa.common.graph import ancestors
from bppsa.runtime.programs.program import Writer
from bppsa.runtime.sparse_conv.programs.image import Image, empty, pack
from bppsa.runtime.sparse_conv.programs.step import RegionStep, SavedImages, StepOperands, Wanted


@cache
def zeros(dtype: torch.dtype) -> Kernel:
    return kernel("zeros", [], {"y": const(0.0)}, native.LANES[dtype])


class Pointwise(RegionStep):
    """Any number of images of one shape. flat: those whose derivative is zero everywhere, as of a sign: autograd gives
    them a gradient of zeros, and those that it does not reach none."""

    reads_input = True

    def __init__(self, function: Elementwise, flat: Sequence[int]) -> None:
        self.function, self.flat = function, tuple(flat)

    def kernels(self, dtype: torch.dtype) -> tuple[Kernel, ...]:
        lanes = native.LANES[dtype]
        back = (self.function.backward(lanes),) if self.function.reached else ()
        return self.function.forward(lanes), *back, *((zeros(dtype),) if self.flat else ())

    def reads(self, inputs: Sequence[bool], params: Sequence[bool]) -> tuple[Sequence[bool], Sequence[bool]]:
        cotangents = compress(self.function.transposed.streams, inputs)
        read = ancestors(node for node in cotangents if node is not None)
        roles = [self.origin(node.meta["role"]) for node in read if node.op == "placeholder"]
        return [Role("stream", i) in roles for i in range(len(inputs))], ()

    def origin(self, role: Role) -> Role:
        """The role of the image that a copy was made of: the body copies what might be changed."""
        named = {node.name: node for node in self.function.body.body.nodes}
        node = named[str(role.index)] if role.kind == "value" else None
        while node is not None and node.target in HANDED_ON:
            node = node.all_input_nodes[0]
        return node.meta["role"] if node is not None and node.op == "placeholder" else role

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, None]:
        out, (ahead, *_) = empty(to, given.inputs[0].shape, kept=given.keeps_output), self.kernels(to.dtype)
        to.call(native.pointwise(ahead, to.dtype), *(x.data for x in given.inputs), out.data, out.count, out.threads)
        return out, None

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image | None, ...]:
        inputs = [x for x in kept.inputs if x is not None]
        found = {i: empty(to, g.shape) for i in self.function.reached}
        if found:
            back = self.function.backward(native.LANES[to.dtype])
            places = [image.data for image in (g, *inputs, *found.values())]
            to.call(native.pointwise(back, to.dtype), *places, g.count, g.threads)
        for i in [i for i in found if not wanted.inputs[i]]:
            to.free(found.pop(i).data)
        for i in [i for i in self.flat if wanted.inputs[i]]:
            found[i] = empty(to, g.shape)
            to.call(native.pointwise(zeros(to.dtype), to.dtype), found[i].data, g.count, g.threads)
        return tuple(map(found.get, range(len(inputs))))


@cache
def product(dtype: torch.dtype) -> Kernel:
    value = Expr(Op.MUL, load(Access("a")), load(Access("b")))
    return kernel("product", ["a", "b"], {"y": value}, native.LANES[dtype])


class Dropout(RegionStep):
    """Dropout in training: the draws are PyTorch's, of single numbers or of whole channels, in PyTorch's order. sizes:
    of the tensor, [B, C] or [B, C, H, W]. layout: in which they are drawn."""

    def __init__(self, p: float, channels: bool, sizes: tuple[int, ...], layout: torch.memory_format) -> None:
        self.p, self.sizes, self.layout = p, sizes, layout
        self.drawn = (*sizes[:2], 1, 1) if channels else sizes

    def kernels(self, dtype: torch.dtype) -> tuple[Kernel]:
        return (product(dtype),)

    def brings(self, dtype: torch.dtype, extras: Sequence[Any]) -> Sequence[Tensor]:
        noise = torch.empty(self.drawn, dtype=dtype, memory_format=self.layout).bernoulli_(1 - self.p).div_(1 - self.p)
        return (noise.expand(self.sizes).contiguous(),)

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, Image]:
        (x,), (noise,) = given.inputs, given.brought
        out = empty(to, x.shape, kept=given.keeps_output)
        factors = pack(to, noise, x.shape, repeat=True, kept=given.keeps_own)
        self.multiply(to, x, factors, out)
        if not given.keeps_own:
            to.free(factors.data)
        return out, factors

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image]:
        to_x = empty(to, g.shape)
        self.multiply(to, g, kept.own, to_x)
        return (to_x,)

    def multiply(self, to: Writer, a: Image, b: Image, out: Image) -> None:
        kernel = native.pointwise(product(to.dtype), to.dtype)
        to.call(kernel, a.data, b.data, out.data, out.count, out.threads)
