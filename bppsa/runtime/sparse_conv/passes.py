"""A region's forward and its backward as programs: which image lies where, and how long."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bppsa.codegen.sparse_conv import native
from bppsa.runtime.programs.program import CallProgram, Place, Writer
from bppsa.runtime.sparse_conv.programs.image import Image, ImageShape, join, pack, unpack
from bppsa.runtime.sparse_conv.programs.step import SavedImages, StepOperands, Wanted
from bppsa.runtime.sparse_conv.region import Node, Region


@dataclass(frozen=True, eq=False)
class RegionForward:
    """The program takes inputs, parameters that there are, what steps bring, and the outputs.

    depends: of each step, what else its calls depend on. values, own: what is kept, by value and of each node.
    outputs, params: sizes of these tensors. backwards: those that have been written for it.
    """

    program: CallProgram
    depends: list[Any]
    outputs: list[torch.Size]
    values: dict[int, Image]
    own: list[Any]
    params: list[torch.Size | None]
    backwards: dict[Any, RegionBackward] = field(default_factory=dict)


@dataclass(frozen=True)
class Gradient:
    """of: which of inputs and parameters. places: int32 [E], of the entries that alone are computed, or None."""

    of: int
    size: torch.Size
    places: Tensor | None = None

    @property
    def count(self) -> int:
        return math.prod(self.size) if self.places is None else self.places.numel()


@dataclass(frozen=True, eq=False)
class RegionBackward:
    """The program takes the cotangents that there are, parameters, and room for the gradients."""

    program: CallProgram
    gradients: list[Gradient]


class Uses:
    """How often an image is yet to be read, by where it is: several values may be one image."""

    def __init__(self, to: Writer) -> None:
        self.to = to
        self.counts: Counter[Place] = Counter()

    def add(self, image: Image, times: int = 1) -> Image:
        self.counts[image.data] += times
        return image

    def drop(self, image: Image) -> None:
        self.counts[image.data] -= 1
        if not self.counts[image.data]:
            self.to.free(image.data)


def write_forward(
    region: Region, tensors: Sequence[Tensor | None], brought: Sequence[int], depends: list[Any], *, save: bool
) -> RegionForward:
    """tensors: inputs and parameters. brought: how many tensors each step brings. save: for a backward."""
    inputs, params = tensors[: len(region.inputs)], tensors[len(region.inputs) :]
    sizes = [tuple(t.shape) for t in inputs if t is not None]
    dtype = next(t.dtype for t in inputs if t is not None)
    to = Writer(dtype, native.runner(dtype))
    uses, kept = Uses(to), region.kept if save else frozenset()
    given, placed = [to.tensor() for _ in sizes], places(to, params)
    extras = [[to.tensor() for _ in range(count)] for count in brought]
    values = {
        v: uses.add(pack(to, place, ImageShape(*size), repeat=True, kept=v in kept), region.readers[v])
        for v, place, size in zip(region.inputs, given, sizes, strict=True)
    }
    own: list[Any] = []
    for node, extra in zip(region.nodes, extras, strict=True):
        images = [values[v] for v in node.inputs]
        operands = StepOperands(images, chosen(placed, node), extra, save, node.output in kept)
        image, private = node.step.forward(to, operands)
        values[node.output] = uses.add(image, region.readers[node.output])
        own.append(private)
        for v in node.inputs:
            uses.drop(values[v])
    for v in region.outputs:
        unpack(to, values[v], to.tensor())
    outputs = [values[v].shape.sizes(region.dims[v]) for v in region.outputs]
    shapes = [None if t is None else t.shape for t in params]
    return RegionForward(to.program(), depends, outputs, {v: values[v] for v in kept}, own, shapes)


def write_backward(
    region: Region, forward: RegionForward, given: Sequence[bool], needs: Sequence[bool], ends: Sequence[bool]
) -> RegionBackward:
    """given: which outputs have a cotangent. needs: of each input and parameter, whether its gradient is asked for;
    ends: of each parameter, whether that stays with it, and may hold kept entries alone."""
    to = Writer(forward.program.dtype, forward.program.run_calls)
    writer = _Cotangents(region, forward, to)
    for v, place, size in zip(region.outputs, places(to, given), forward.outputs, strict=True):
        if place is not None:
            writer.begin(v, place, ImageShape(*size))
    params = places(to, forward.params)
    needed, param_needs = region.needed(needs), needs[len(region.inputs) :]
    gradients: list[Gradient] = []
    for node, own in zip(reversed(region.nodes), reversed(forward.own), strict=True):
        if node.output not in writer.found or node.output not in needed:
            continue
        cotangent = writer.joined(node.output)
        weight = node.params[0] if node.params else None
        only = node.step.places(own) if weight is not None and ends[weight] else None
        asked: list[Place | None] = []
        for i in node.params:
            if i is None or not param_needs[i]:
                asked.append(None)
                continue
            asked.append(to.tensor())
            whole = forward.params[i]
            assert whole is not None
            gradients.append(Gradient(len(region.inputs) + i, whole, only if i == weight else None))
        writer.through(node, own, cotangent, chosen(params, node), asked, needed, only is not None)
    for i, v in enumerate(region.inputs):
        if v in writer.found and v in needed:
            image = writer.joined(v)
            unpack(to, image, to.tensor())
            gradients.append(Gradient(i, image.shape.sizes(region.dims[v])))
    return RegionBackward(to.program(), gradients)


@dataclass
class _Cotangents:
    """The cotangents of each value that its readers have found so far."""

    region: Region
    forward: RegionForward
    to: Writer
    found: dict[int, list[Image]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uses = Uses(self.to)

    def begin(self, value: int, place: Place, shape: ImageShape) -> None:
        self.found[value] = [self.uses.add(pack(self.to, place, shape, repeat=False))]

    def joined(self, value: int) -> Image:
        """Their sum, where the value lets them pass; whoever asks drops it."""
        total, *more = self.found.pop(value)
        mask = self.forward.values[value] if value in self.region.masked_late else None
        for i, image in enumerate(more or ([None] if mask else [])):
            last = i + 1 >= len(more)
            into = self.uses.add(join(self.to, total, image, mask if last else None))
            self.uses.drop(total)
            if image is not None:
                self.uses.drop(image)
            total = into
        return total

    def through(
        self,
        node: Node,
        own: Any,
        cotangent: Image,
        params: Sequence[Place | None],
        asked: Sequence[Place | None],
        needed: set[int],
        compact: bool,
    ) -> None:
        """Goes from the cotangent of a node's output to those of its inputs. asked: where its parameters' gradients
        go."""
        region, values = self.region, self.forward.values
        x = node.inputs[0]
        rectified = x in region.rectified and x not in region.masked_late
        wanted = Wanted(tuple(v in needed for v in node.inputs), tuple(asked), rectified, compact)
        kept = SavedImages(tuple(map(values.get, node.inputs)), values.get(node.output), own, params)
        images = node.step.backward(self.to, cotangent, kept, wanted)
        for v, image in zip(node.inputs, images, strict=True):
            if image is not None and v in needed:
                self.found.setdefault(v, []).append(self.uses.add(image))
        self.uses.drop(cotangent)


def places(to: Writer, tensors: Sequence[object]) -> list[Place | None]:
    """The places of those tensors that there are."""
    return [to.tensor() if there is not None and there is not False else None for there in tensors]


def chosen(params: Sequence[Place | None], node: Node) -> list[Place | None]:
    return [None if i is None else params[i] for i in node.params]
