"""Images in the blocked layout, and how tensors become them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa.codegen.blocked.native import LANES, images
from bppsa.codegen.native import available_threads
from bppsa.runtime import pool

REALS_PER_THREAD = 16 << 10  # fewer are not worth waking another thread for


@dataclass(frozen=True)
class Shape:
    """Of a batch of images; a batch of vectors has images of one pixel."""

    samples: int
    channels: int
    height: int = 1
    width: int = 1

    @property
    def pixels(self) -> int:
        return self.height * self.width

    def flat(self) -> Shape:
        return Shape(self.samples, self.channels * self.pixels)


@dataclass(frozen=True)
class Image:
    """data: [blocks, channels, height, width, L], flat."""

    data: Tensor
    shape: Shape

    @property
    def lanes(self) -> int:
        return LANES[self.data.dtype]

    @property
    def blocks(self) -> int:
        return -(-self.shape.samples // self.lanes)

    @property
    def planes(self) -> int:
        return self.blocks * self.shape.channels

    @property
    def plane(self) -> int:
        """Reals in a channel of a block."""
        return self.shape.pixels * self.lanes

    @property
    def last(self) -> int:
        """Lanes of the last block that hold samples."""
        return self.shape.samples - (self.blocks - 1) * self.lanes

    @property
    def threads(self) -> int:
        """For a pass over all of it."""
        return max(1, min(available_threads(), self.data.numel() // REALS_PER_THREAD))

    def reshaped(self, shape: Shape) -> Image:
        """The same numbers: flattening channels and pixels moves nothing."""
        return Image(self.data, shape)


def empty(shape: Shape, dtype: torch.dtype) -> Image:
    lanes = LANES[dtype]
    blocks = -(-shape.samples // lanes)
    return Image(pool.take(blocks * lanes * shape.channels * shape.pixels, dtype), shape)


def pack(tensor: Tensor, *, repeat: bool) -> Image:
    """`tensor`: [B, C], or [B, C, H, W]. repeat: lanes without a sample get the last one, else zeros."""
    image = empty(Shape(*tensor.shape), tensor.dtype)
    s = image.shape
    source = tensor.contiguous()
    images(tensor.dtype).pack(source, image.data, s.samples, s.channels, s.pixels, repeat, image.threads)
    return image


def unpack(image: Image, dims: int) -> Tensor:
    """[B, C, H, W], or [B, C] with 2 `dims`."""
    s = image.shape
    tensor = torch.empty(s.samples, s.channels, *(s.height, s.width)[: dims - 2], dtype=image.data.dtype)
    images(image.data.dtype).unpack(image.data, tensor, s.samples, s.channels, s.pixels, image.threads)
    return tensor


def join(a: Image, b: Image | None, kept: Image | None) -> Image:
    """a + b where `kept`, a rectified image, is not zero."""
    out = empty(a.shape, a.data.dtype)
    images(a.data.dtype).join(a.data, b and b.data, kept and kept.data, out.data, a.data.numel(), a.threads)
    return out
