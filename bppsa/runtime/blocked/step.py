"""What a layer of a region is: a forward on images, a backward on their cotangents.

A value may be *rectified*: the output of a ReLU that the step which made it has applied. Its cotangent passes only
where the value is not zero; whoever reads the value last applies that, inside its own kernel where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from bppsa.runtime.blocked.image import Image, Shape


@dataclass(frozen=True)
class Wanted:
    """Of which inputs and parameters a gradient is asked for. rectified: the input was, and its mask is to be
    applied."""

    inputs: tuple[bool, ...]
    params: tuple[bool, ...]
    rectified: bool


@dataclass(frozen=True)
class Kept:
    """What the forward leaves for the backward, besides parameters. An image that no step asked for is None."""

    inputs: tuple[Image | None, ...]
    output: Image | None
    own: Any = None


@dataclass(frozen=True)
class Gradients:
    inputs: tuple[Image | None, ...]
    params: tuple[Tensor | None, ...] = field(default=())


class Step(Protocol):
    masks: bool  # can apply the mask of a rectified input itself
    reads_input: bool  # in its backward
    reads_output: bool

    def shape(self, *inputs: Shape) -> Shape: ...

    def forward(self, inputs: Sequence[Image], params: Sequence[Tensor | None], save: bool) -> tuple[Image, Any]:
        """The output, and what only this step keeps for its backward if it is to be saved."""
        ...

    def backward(self, g: Image, kept: Kept, params: Sequence[Tensor | None], wanted: Wanted) -> Gradients: ...
