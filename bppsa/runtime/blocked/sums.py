"""Steps that move or add images: residual sums, a ReLU on its own, flattening."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bppsa.codegen.blocked.native import images
from bppsa.runtime.blocked.image import Image, Shape, empty
from bppsa.runtime.blocked.step import Gradients, Kept, Wanted


class Sum:
    """The sum of two images, or one image alone; rectified or not."""

    masks = reads_input = reads_output = False

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, None]:
        a, *more = inputs
        out = empty(a.shape, a.data.dtype)
        b = more[0].data if more else None
        images(a.data.dtype).add(a.data, b, out.data, a.data.numel(), self.relu, a.threads)
        return out, None

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        return Gradients((g,) * len(wanted.inputs))


class Flatten:
    """Its output is the input under another shape, and is rectified where that is: who reads it applies the mask."""

    masks = True
    reads_input = reads_output = False

    def shape(self, *inputs: Shape) -> Shape:
        return inputs[0].flat()

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, Shape]:
        (x,) = inputs
        return x.reshaped(x.shape.flat()), x.shape

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients:
        return Gradients((g.reshaped(kept.own),))
