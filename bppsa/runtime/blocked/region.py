"""A region: steps on blocked images between two conversions, and one autograd node around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import InputError
from bppsa.runtime.blocked.image import Image, join, pack, unpack
from bppsa.runtime.blocked.step import Kept, Step, Wanted

MEND = "use the model that was given to bppsa.compile for that step: it has the same Parameters"


@dataclass(frozen=True, eq=False)
class Node:
    """A step in a region: which values it reads and makes, and which of the region's parameters it takes."""

    step: Step
    inputs: tuple[int, ...]
    output: int
    params: tuple[int | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Region:
    """inputs, outputs: values that come in and go out as tensors; dims: of each of these tensors. rectified: values
    that a ReLU has made, within the step that computes them."""

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dims: dict[int, int]
    rectified: frozenset[int]

    @cached_property
    def readers(self) -> Counter[int]:
        return Counter([*(v for node in self.nodes for v in node.inputs), *self.outputs])

    @cached_property
    def masked_late(self) -> frozenset[int]:
        """Rectified values whose cotangents are masked when all of them are there: no single reader does it."""
        by_reader = {v for n in self.nodes for v in n.inputs if n.step.masks and self.readers[v] == 1}
        return self.rectified - by_reader

    @cached_property
    def kept(self) -> frozenset[int]:
        """Values that the backward reads."""
        inputs = {v for node in self.nodes if node.step.reads_input for v in node.inputs}
        outputs = {node.output for node in self.nodes if node.step.reads_output}
        return self.masked_late | inputs | outputs

    @cached_property
    def last_reader(self) -> dict[int, Node]:
        return {v: node for node in self.nodes for v in node.inputs}

    def forward(self, tensors: Sequence[Tensor | None], save: bool) -> tuple[tuple[Tensor, ...], Tape]:
        """tensors: the inputs, then the parameters."""
        values = {v: pack(t, repeat=True) for v, t in zip(self.inputs, tensors, strict=False) if t is not None}
        params = tensors[len(self.inputs) :]
        own: list[Any] = []
        kept: dict[int, Image] = {}
        for node in self.nodes:
            for v in node.inputs:
                if save and v in self.kept:
                    kept[v] = values[v]
            images = [values[v] for v in node.inputs]
            values[node.output], private = node.step.forward(images, self.chosen(params, node), save)
            own.append(private)
            for v in set(node.inputs):
                if self.last_reader[v] is node and v not in self.outputs:
                    del values[v]
        if save:
            kept |= {v: values[v] for v in self.outputs if v in self.kept}
        return tuple(unpack(values[v], self.dims[v]) for v in self.outputs), Tape(kept, own)

    def chosen(self, params: Sequence[Tensor | None], node: Node) -> list[Tensor | None]:
        return [None if i is None else params[i] for i in node.params]

    def backward(
        self, grads: Sequence[Tensor | None], tape: Tape, params: Sequence[Tensor | None], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """needs: of each input and parameter, whether its gradient is asked for."""
        needed, param_needs = self.needed(needs), needs[len(self.inputs) :]
        cotangents: dict[int, list[Image]] = {}
        for v, g in zip(self.outputs, grads, strict=True):
            if g is not None:
                cotangents[v] = [pack(g, repeat=False)]
        found: list[Tensor | None] = [None] * len(params)
        for node, own in zip(reversed(self.nodes), reversed(tape.own), strict=True):
            given = cotangents.pop(node.output, None)
            if not given or node.output not in needed:
                continue
            cotangent = self.joined(node.output, given, tape)
            v = node.inputs[0]
            wanted = Wanted(
                tuple(v in needed for v in node.inputs),
                tuple(i is not None and param_needs[i] for i in node.params),
                v in self.rectified and v not in self.masked_late,
            )
            kept = Kept(tuple(map(tape.values.get, node.inputs)), tape.values.get(node.output), own)
            gradients = node.step.backward(cotangent, kept, self.chosen(params, node), wanted)
            for v, image in zip(node.inputs, gradients.inputs, strict=True):
                if image is not None and v in needed:
                    cotangents.setdefault(v, []).append(image)
            for i, gradient in zip(node.params, gradients.params, strict=False):
                if i is not None and gradient is not None:
                    before = found[i]
                    found[i] = gradient if before is None else before + gradient
        sums = {v: self.joined(v, cotangents[v], tape) for v in self.inputs if v in cotangents}
        return [*(unpack(sums[v], self.dims[v]) if v in sums else None for v in self.inputs), *found]

    def joined(self, value: int, given: Sequence[Image], tape: Tape) -> Image:
        """The sum of a value's cotangents, where the value lets them pass."""
        total, *more = given
        kept = tape.values[value] if value in self.masked_late else None
        for i, image in enumerate(more):
            total = join(total, image, kept if i + 1 == len(more) else None)
        return total if more or kept is None else join(total, None, kept)

    def needed(self, needs: Sequence[bool]) -> set[int]:
        """Values that some gradient that is asked for passes through."""
        found = {v for v, need in zip(self.inputs, needs, strict=False) if need}
        params = needs[len(self.inputs) :]
        for node in self.nodes:
            if not found.isdisjoint(node.inputs) or any(i is not None and params[i] for i in node.params):
                found.add(node.output)
        return found


@dataclass(frozen=True)
class Tape:
    """What a forward keeps: images by value, and what each node keeps of its own."""

    values: dict[int, Image]
    own: list[Any]


def run(region: Region, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The region's outputs, with gradients if autograd wants any. tensors: the inputs, then the parameters."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Apply.apply(region, *tensors)
    return region.forward(tensors, save=False)[0]


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        outputs, ctx.tape = region.forward(tensors, save=True)
        ctx.region = region
        ctx.save_for_backward(*tensors[len(region.inputs) :])  # a change in place before the backward is an error
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(f"pruned layers: gradients of gradients (create_graph=True) are not computed; {MEND}")
        found = ctx.region.backward(grads, ctx.tape, ctx.saved_tensors, ctx.needs_input_grad[1:])
        return None, *found
