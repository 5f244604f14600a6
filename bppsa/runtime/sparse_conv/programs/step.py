"""What a layer of a region is: the calls of its forward on images, and those of its backward on their cotangents.

A step computes nothing itself: it writes calls into a program, once for each state and shape, and programs are run.
A value may be *rectified*: the output of a ReLU that the step which made it has applied. Its cotangent passes only
where the value is not zero; whoever reads the value last applies that, inside its own kernel where it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa.runtime.programs.program import Place, Writer
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape


class StepOperands(NamedTuple):
    """What a forward is given. brought: what its step brings. keeps_own, keeps_output: what stays until the backward:
    what only the step's own needs, and its output."""

    inputs: Sequence[Image]
    params: Sequence[Place | None]
    brought: Sequence[Place]
    keeps_own: bool
    keeps_output: bool


@dataclass(frozen=True)
class Wanted:
    """What gradients are asked for: which inputs', and for a parameter where it goes, or None. rectified: the
    input was, and its mask is to be applied. compact: of the first parameter only the entries at `RegionStep.places`.
    """

    inputs: tuple[bool, ...]
    params: tuple[Place | None, ...]
    rectified: bool
    compact: bool = False


@dataclass(frozen=True)
class SavedImages:
    """What the forward leaves for the backward, and the parameters. An image that no step asked for is None."""

    inputs: tuple[Image | None, ...]
    output: Image | None
    own: Any
    params: Sequence[Place | None]


class RegionStep(ABC):
    masks = False  # can apply the mask of a rectified input itself
    reads_input = False  # in its backward
    reads_output = False
    renames = False  # its output is its input

    def shape(self, *inputs: ImageShape) -> ImageShape:
        """The shape of the output; by default the first input's."""
        return inputs[0]

    def depends(self) -> Any:
        """What else than shapes its calls depend on: where that has become another, they are written anew."""
        return None

    def places(self, own: Any) -> Tensor | None:
        """int32 [E], where in its first parameter the only entries are that may have a gradient; None for all of them.
        own: what its forward has kept."""
        return None

    def brings(self, dtype: torch.dtype, extras: Sequence[Any]) -> Sequence[Tensor]:
        """What each forward is given besides parameters, contiguous: made of `extras`, the buffers and numbers that the
        call has for this step."""
        return ()

    def reads_again(self, brought: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors of the call's own that its backward reads too, in which nobody may change anything until then."""
        return ()

    def reads(self, inputs: Sequence[bool], params: Sequence[bool]) -> tuple[Sequence[bool], Sequence[bool]]:
        """Its inputs and parameters in which nobody may change anything until the backward has run: what
        PyTorch's reads. inputs, params: whether a gradient goes to each."""
        return (False,) * len(inputs), (False,) * len(params)

    @abstractmethod
    def forward(self, to: Writer, given: StepOperands) -> tuple[Image, Any]:
        """The output, and what only this step keeps for its backward."""

    @abstractmethod
    def backward(self, to: Writer, g: Image, kept: SavedImages, wanted: Wanted) -> tuple[Image | None, ...]:
        """The inputs' cotangents. Gradients of parameters go where `wanted` says."""
