"""Run a region, with one autograd node around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bppsa.codegen.native import available_threads
from bppsa.runtime import pool
from bppsa.runtime.blocked.again import gradients
from bppsa.runtime.blocked.passes import Forward, write_backward, write_forward
from bppsa.runtime.blocked.region import Region

_keys = torch._C._dispatch_keys
with torch.inference_mode(False):
    _USUAL = _keys(torch.empty(0, device="cpu"))
_written: WeakKeyDictionary[Region, dict[Any, Forward]] = WeakKeyDictionary()  # by whether to save, and threads


@dataclass(frozen=True)
class Tape:
    """What a forward keeps: `data`, uint8, as `forward` has laid it out, and what its steps brought."""

    forward: Forward
    data: Tensor | None
    brought: list[Sequence[Tensor]]


def run(region: Region, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The region's outputs, with gradients if autograd wants any. tensors: the inputs, then the parameters."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Apply.apply(region, *tensors)
    return run_forward(region, tensors, save=False)[0]


def run_forward(region: Region, tensors: Sequence[Tensor | None], *, save: bool) -> tuple[tuple[Tensor, ...], Tape]:
    first = tensors[0]
    assert first is not None
    brought = [node.step.brings(first.dtype) for node in region.nodes]
    depends = [node.step.depends() for node in region.nodes]
    written, key = _written.setdefault(region, {}), (save, available_threads())
    forward = written.get(key)
    if forward is None or forward.depends != depends:
        forward = written[key] = write_forward(region, tensors, [len(b) for b in brought], depends, save=save)
    given = [t.detach().contiguous() for t in tensors if t is not None]
    outputs = tuple(torch.empty(size, dtype=first.dtype) for size in forward.outputs)
    tape = pool.take(forward.program.tape, torch.uint8) if save else None
    forward.program.run(tape, [*given, *(t for b in brought for t in b), *outputs])
    return outputs, Tape(forward, tape, brought)


def run_backward(
    region: Region,
    grads: Sequence[Tensor | None],
    tape: Tape,
    params: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of inputs and parameters. needs: whether each is asked for."""
    key = tuple(g is not None for g in grads), tuple(needs), available_threads()
    backward = tape.forward.backwards.get(key)
    if backward is None:
        backward = tape.forward.backwards[key] = write_backward(region, tape.forward, key[0], needs)
    given = [t.detach().contiguous() for t in (*grads, *params) if t is not None]
    dtype = backward.program.dtype
    found: list[Tensor | None] = [None] * len(needs)
    for i, size in backward.gradients:
        found[i] = pool.take(math.prod(size), dtype).view(size)
    backward.program.run(tape.data, [*given, *(found[i] for i, _ in backward.gradients)])
    return found


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        outputs, ctx.tape = run_forward(region, tensors, save=True)
        ctx.region = region
        ctx.save_for_backward(*tensors)  # a change in place before the backward is an error
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        region, tensors, tape, needs = ctx.region, ctx.saved_tensors, ctx.tape, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or not all(map(is_memory, grads)):  # create_graph, or cotangents in a vmap
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                return None, *gradients(region, tensors, grads, needs, tape.forward.depends, tape.brought)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.tape = None
        return None, *run_backward(region, grads, tape, tensors[len(region.inputs) :], needs)


def is_memory(cotangent: Tensor | None) -> bool:
    """Numbers that a kernel may read."""
    return cotangent is None or _keys(cotangent) == _USUAL
