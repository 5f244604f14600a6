"""Images in the blocked layout, and the calls that make them of tensors and tensors of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bppsa.codegen.cpu.native import threads_sharing
from bppsa.codegen.sparse_conv.native import LANES, images
from bppsa.runtime.programs.program import Place, Writer

REALS_PER_THREAD = 16 << 10  # fewer are not worth waking another thread for


@dataclass(frozen=True)
class ImageShape:
    """The shape of a batch of images; a batch of vectors has images of one pixel."""

    samples: int
    channels: int
    height: int = 1
    width: int = 1

    @property
    def pixels(self) -> int:
        return self.height * self.width

    def sizes(self, dims: int) -> torch.Size:
        """The sizes of a tensor of 2 or 4 dimensions."""
        return torch.Size((self.samples, self.channels, self.height, self.width)[:dims])

    def flat(self) -> ImageShape:
        return ImageShape(self.samples, self.channels * self.pixels)


@dataclass(frozen=True)
class Image:
    """data: where in a program [blocks, channels, height, width, L] will be."""

    data: Place
    shape: ImageShape
    dtype: torch.dtype

    @property
    def lanes(self) -> int:
        return LANES[self.dtype]

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
    def count(self) -> int:
        return self.planes * self.plane

    @property
    def last(self) -> int:
        """Lanes of the last block that hold samples."""
        return self.shape.samples - (self.blocks - 1) * self.lanes

    @property
    def threads(self) -> int:
        """How many threads a pass over all of it takes."""
        return threads_sharing(self.count, REALS_PER_THREAD)

    def reshaped(self, shape: ImageShape) -> Image:
        """The same numbers: flattening channels and pixels moves nothing."""
        return replace(self, shape=shape)


def empty(to: Writer, shape: ImageShape, *, kept: bool = False) -> Image:
    lanes = LANES[to.dtype]
    blocks = -(-shape.samples // lanes)
    count = blocks * lanes * shape.channels * shape.pixels
    return Image(to.take(count, kept=kept), shape, to.dtype)


def pack(to: Writer, tensor: Place, shape: ImageShape, *, repeat: bool, kept: bool = False) -> Image:
    """The image of a tensor of the shape. repeat: lanes without a sample get the last one, else zeros."""
    image, s = empty(to, shape, kept=kept), shape
    to.call(images(to.dtype).pack, tensor, image.data, s.samples, s.channels, s.pixels, repeat, image.threads)
    return image


def unpack(to: Writer, image: Image, tensor: Place) -> None:
    s = image.shape
    to.call(images(to.dtype).unpack, image.data, tensor, s.samples, s.channels, s.pixels, image.threads)


def join(to: Writer, a: Image, b: Image | None, kept: Image | None) -> Image:
    """a + b where `kept`, a rectified image, is not zero."""
    out, others = empty(to, a.shape), [None if image is None else image.data for image in (b, kept)]
    to.call(images(to.dtype).join, a.data, *others, out.data, a.count, a.threads)
    return out
