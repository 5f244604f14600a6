"""Autograd around a feed-forward program: what is saved, and which path a backward takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa.common.leaves import needed_gradients, without_graph
from bppsa.runtime.chain.feedforward import ChainProgram, StageBoundaries
from bppsa.runtime.cotangents import is_memory
from bppsa.runtime.recurrent.scan.extent import Given


def apply(program: ChainProgram, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a call; tensors: in the order of the program's placeholders."""
    return ApplyChain.apply(program, *tensors)


class ApplyChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: ChainProgram, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.program, ctx.count = program, len(tensors)
        ctx.again = Again(program, tensors)
        with torch.enable_grad():
            ctx.aliases = [without_graph(t) for t in tensors]  # the caller's hooks stay outside
            passed = program.forward(ctx.aliases)
        ctx.passed = StageBoundaries(passed.results, passed.ends, passed.starts, ())
        ctx.save_for_backward(*tensors, *(value.detach() for value in passed.values))
        ctx.set_materialize_grads(False)
        # autograd or a rule may read an output in the backward: what the caller changes in place is a copy
        outputs = tuple(result.detach().clone() for result in passed.results)
        ctx.mark_non_differentiable(*(o for o, d in zip(outputs, program.differentiable, strict=True) if not d))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        tensors, values = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() or not all(map(is_memory, grads)):  # create_graph, or many at once
            with torch.enable_grad():
                return (None, *ctx.again.gradients(tensors, grads, ctx.needs_input_grad[1:]))
        found = ctx.program.backward(ctx.passed, values, ctx.aliases, grads)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.passed = ctx.aliases = None
        return (None, *found)


class Again:
    """The call by PyTorch's own differentiable ops: with the random numbers of the first time, and without changing
    buffers a second time."""

    def __init__(self, program: ChainProgram, tensors: Sequence[Tensor]) -> None:
        self.program = program
        self.random = random_state(tensors) if program.draws else None
        self.before = {i: tensors[i].clone() for i in program.changed}

    def gradients(self, tensors: Sequence[Tensor], grads: Given, needs: Sequence[bool]) -> list[Tensor | None]:
        given = [
            self.before[i] if i in self.before else t.view_as(t) if t.requires_grad else t.clone()
            for i, t in enumerate(tensors)
        ]
        with torch.random.fork_rng():
            if self.random is not None:
                set_random_state(self.random)
            outputs = self.program.plain(*given)
        return needed_gradients(outputs, grads, given, needs, create_graph=True)


def random_state(tensors: Sequence[Tensor]) -> tuple[Tensor, dict[int, Tensor]]:
    devices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
    return torch.get_rng_state(), {index: torch.cuda.get_rng_state(index) for index in devices}


def set_random_state(state: tuple[Tensor, dict[int, Tensor]]) -> None:
    torch.set_rng_state(state[0])
    for index, of_device in state[1].items():
        torch.cuda.set_rng_state(of_device, index)
