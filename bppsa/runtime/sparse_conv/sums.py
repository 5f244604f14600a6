"""Steps that move or add images: residual sums, a ReLU on its own, flattening."""

from __future__ import annotations

from bppsa.codegen.sparse_conv.native import images
from bppsa.runtime.programs.program import Writer
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape, empty
from bppsa.runtime.sparse_conv.programs.step import RegionStep, SavedImages, StepOperands, Wanted


class ImageSum(RegionStep):
    """The sum of two images, or one image alone; rectified or not."""

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, None]:
        a, *more = given.inputs
        out = empty(to, a.shape, kept=given.keeps_output)
        b = more[0].data if more else None
        to.call(images(to.dtype).add, a.data, b, out.data, a.count, self.relu, a.threads)
        return out, None

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image, ...]:
        return (g,) * len(wanted.inputs)


class Flatten(RegionStep):
    """Its output is the input under another shape, and is rectified where that is: who reads it applies the mask."""

    masks = renames = True

    def shape(self, *inputs: ImageShape) -> ImageShape:
        return inputs[0].flat()

    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, ImageShape]:
        (x,) = given.inputs
        return x.reshaped(x.shape.flat()), x.shape

    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image]:
        return (g.reshaped(kept.own),)
