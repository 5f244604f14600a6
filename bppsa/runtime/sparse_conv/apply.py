"""Run a region, with one autograd node around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bppsa.codegen.cpu.native import available_threads
from bppsa.runtime import pool
from bppsa.runtime.cotangents import is_memory
from bppsa.runtime.sparse_conv.again import gradients
from bppsa.runtime.sparse_conv.gradient import gradient_of
from bppsa.runtime.sparse_conv.kept import KeptValues
from bppsa.runtime.sparse_conv.passes import Gradient, RegionForward, write_backward, write_forward
from bppsa.runtime.sparse_conv.region import Region


@dataclass(frozen=True)
class Tape:
    """What a forward keeps: `data`, uint8, as `forward` has laid it out, and what its steps brought."""

    forward: RegionForward
    data: Tensor | None
    brought: list[Sequence[Tensor]]


class Unsaved(NamedTuple):
    """A tensor that a backward does not read, unless it is differentiated itself. version: when the forward ran."""

    tensor: Tensor
    version: int

    @staticmethod
    def of(tensor: Tensor) -> Unsaved:
        return Unsaved(tensor, version_of(tensor))


def run(region: Region, tensors: Sequence[Tensor], extras: Sequence[Any]) -> tuple[Tensor, ...]:
    """The region's outputs, with gradients if autograd wants any. tensors: the inputs, then the parameters. extras:
    buffers and numbers, which have no gradients."""
    if torch.is_grad_enabled() and any([t.requires_grad for t in tensors]):
        return _apply(region, extras, *tensors)
    return run_forward(region, tensors, extras, save=False)[0]


def run_forward(
    region: Region, tensors: Sequence[Tensor], extras: Sequence[Any], *, save: bool
) -> tuple[tuple[Tensor, ...], Tape]:
    """Runs the forward without autograd: in a node of its own, or where nobody asks for a gradient."""
    dtype = tensors[0].dtype
    brought: list[Sequence[Tensor]] = [()] * len(region.nodes)
    for i in region.bringing:
        node = region.nodes[i]
        brought[i] = node.step.brings(dtype, extras[slice(*node.extras)])
    key, depends = (save, available_threads()), region.depends()
    forward = region.programs.get(key)
    if forward is None or forward.depends != depends:
        forward = write_forward(region, tensors, [len(b) for b in brought], depends, save=save)
        region.programs[key] = forward
    outputs = tuple([torch.empty(size, dtype=dtype) for size in forward.outputs])
    tape = pool.take(forward.program.tape, torch.uint8) if save else None
    forward.program.run(tape, [*map(Tensor.contiguous, tensors), *chain.from_iterable(brought), *outputs])
    return outputs, Tape(forward, tape, brought)


def run_backward(
    region: Region,
    grads: Sequence[Tensor | None],
    tape: Tape,
    params: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of inputs and parameters. needs: whether each is asked for."""
    ends = tuple([type(p) is nn.Parameter and p.is_contiguous() for p in params])
    key = tuple([g is not None for g in grads]), tuple(needs), ends, available_threads()
    backward = tape.forward.backwards.get(key)
    if backward is None:
        backward = tape.forward.backwards[key] = write_backward(region, tape.forward, key[0], needs, ends)
    given, dtype = [g for g in grads if g is not None], backward.program.dtype
    room = [pool.take(gradient.count, dtype) for gradient in backward.gradients]
    backward.program.run(tape.data, [*map(Tensor.contiguous, (*given, *params)), *room])
    found = {g.of: as_tensor(g, numbers) for g, numbers in zip(backward.gradients, room, strict=True)}
    return [found.get(i) for i in range(len(needs))]


def as_tensor(gradient: Gradient, numbers: Tensor) -> Tensor:
    if gradient.places is not None:
        return gradient_of(KeptValues(numbers, gradient.places, gradient.size))
    return numbers if len(gradient.size) == 1 else numbers.view(gradient.size)


class _ApplyRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, extras: Sequence[Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, ctx.tape = run_forward(region, tensors, extras, save=True)
        ctx.region = region
        again = [t for i in region.bringing for t in region.nodes[i].step.reads_again(ctx.tape.brought[i])]
        saved = region.saved(ctx.needs_input_grad[2:])
        ctx.save_for_backward(*compress(tensors, saved), *again)  # a change in place before the backward is an error
        ctx.others = [None if is_saved else Unsaved.of(t) for t, is_saved in zip(tensors, saved, strict=True)]
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        region, tape, needs = ctx.region, ctx.tape, ctx.needs_input_grad[2:]
        saved, others = iter(ctx.saved_tensors), ctx.others
        tensors = [next(saved) if other is None else other.tensor for other in others]
        if torch.is_grad_enabled() or not all(map(is_memory, grads)):  # create_graph, or cotangents in a vmap
            check_unchanged(others)
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                return None, None, *gradients(region, tensors, grads, needs, tape.forward.depends, tape.brought)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.tape = ctx.others = None
        return None, None, *run_backward(region, grads, tape, tensors[len(region.inputs) :], needs)


# `Function.apply` looks at each tensor for what a functorch transform has left; none is under way, and all are plain.
_apply = super(torch.autograd.Function, _ApplyRegion).apply


def check_unchanged(others: Sequence[Unsaved | None]) -> None:
    """Raises RuntimeError where a tensor has changed, as PyTorch does for what it has saved."""
    if any(other is not None and version_of(other.tensor) != other.version for other in others):
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation; a pruned "
            "model needs all of its inputs and parameters as they were, where gradients are differentiated again"
        )


def version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
