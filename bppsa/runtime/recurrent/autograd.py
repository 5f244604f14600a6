"""Autograd around a call that computes its own gradients: eager PyTorch's way into the sweeps.

What the backward reads is saved through autograd, so that a change in place between forward and backward is noticed,
and freed with the graph. An output that shares memory with what the backward reads is watched instead: if it was
changed, the forward is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bppsa.common.leaves import gradients_through
from bppsa.decisions import warn_without_kernels
from bppsa.errors import BuildError, InputError
from bppsa.plan.strategy import Strategy
from bppsa.runtime.cotangents import is_memory
from bppsa.runtime.memory import check_memory
from bppsa.runtime.recurrent import check
from bppsa.runtime.recurrent.scan.extent import Given, Shape

TensorForm = tuple[Shape, torch.dtype, torch.device]

FEW = 4096  # numbers of a tensor that are copied in less time than a sweep takes to start


@dataclass(frozen=True)
class Result:
    outputs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...] = ()  # private to the call
    exposed: tuple[Tensor, ...] = ()  # share memory with an output


class RecurrenceCall(Protocol):
    """One call of a recurrence, its sizes fixed; `tensors` are all tensors it reads."""

    @property
    def exposed(self) -> int:
        """How many tensors of a result are exposed."""
        ...

    @property
    def strategy(self) -> Strategy:
        """The strategy of the backward."""
        ...

    @property
    def leading(self) -> tuple[int, int]:
        """How many of the tensors are inputs, and how many after them initial carries; the rest has no rows."""
        ...

    def forward(self, tensors: Given, *, save: bool) -> Result: ...

    def backward(
        self, tensors: Given, saved: Sequence[Tensor], exposed: Sequence[Tensor], grads: Given, needs: Sequence[bool]
    ) -> Sequence[Tensor | None]: ...

    def again(self, tensors: Given) -> tuple[Tensor, ...]:
        """The outputs by PyTorch's own differentiable ops."""
        ...

    def shapes(self) -> tuple[list[Shape], list[Shape]]:
        """The shapes of the outputs, and of `[*exposed, *saved]`."""
        ...


def apply(call: RecurrenceCall, tensors: Given) -> tuple[Tensor, ...]:
    """The outputs of `call`, with its gradients if autograd wants any."""
    if torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in tensors]):
        return _apply(call, *tensors)
    return call.forward(tensors, save=False).outputs


class ApplyRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: RecurrenceCall, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        result = call.forward(tensors, save=True)
        ctx.call, ctx.count = call, len(tensors)
        saved = (*kept(tensors, sum(call.leading)), *result.saved)
        ctx.save_for_backward(*saved)
        ctx.forms = forms(saved)
        ctx.exposed = [(tensor, tensor._version) for tensor in result.exposed]
        ctx.set_materialize_grads(False)
        return result.outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if (now := forms(saved)) != ctx.forms:
            raise replaced(ctx.forms, now)
        check_memory([tensor for tensor in saved if tensor is not None])
        # a hook of saved tensors may have given back a view
        tensors, saved = saved[: ctx.count], [t.contiguous() for t in saved[ctx.count :]]
        needs = ctx.needs_input_grad[1:]
        device = next(t.device.type for t in tensors if t is not None)
        # backward may be called where a loss was computed in half precision
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return (None, *gradients(ctx, tensors, saved, grads, needs))


# `Function.apply` looks at each tensor for what a functorch transform has left; none is under way, and all are plain.
_apply = super(torch.autograd.Function, ApplyRecurrence).apply


def kept(tensors: Given, rows: int) -> list[Tensor | None]:
    """What is saved of a call's tensors, of which the first `rows` have rows. Of small constants that is a copy: a
    module may go on to change its buffers, as running means, where no op of PyTorch's has saved them."""
    return [
        t.clone() if t is not None and i >= rows and not t.requires_grad and t.numel() <= FEW else t
        for i, t in enumerate(tensors)
    ]


def forms(tensors: Given) -> list[TensorForm | None]:
    return [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]


def replaced(saved: Sequence[TensorForm | None], now: Sequence[TensorForm | None]) -> InputError:
    """Kernels would read another tensor's memory as if it were the one that was saved."""
    (shape, *kind), (new_shape, *new_kind) = next((a, b) for a, b in zip(saved, now, strict=True) if a and b and a != b)
    was, became = [" ".join([str(list(s)), *map(str, k)]) for s, k in ((shape, kind), (new_shape, new_kind))]
    return InputError(
        f"between a recurrence's forward and its backward a tensor of {was} that the backward reads became one of "
        f"{became}: its .data was replaced, as module.double() does, or a hook of saved tensors gave back another one; "
        "run the backward first, or the forward again"
    )


def gradients(
    ctx: Any, tensors: Given, saved: Sequence[Tensor], grads: Given, needs: Sequence[bool]
) -> Sequence[Tensor | None]:
    if torch.is_grad_enabled():  # create_graph: these gradients will be differentiated again
        return gradients_through(ctx.call.again, tensors, grads, needs, create_graph=True)
    if not all(map(is_memory, grads)):
        return by_pytorch(ctx.call, tensors, grads, needs)
    exposed = [tensor for tensor, _ in ctx.exposed]
    if any(tensor._version != version for tensor, version in ctx.exposed):
        result = ctx.call.forward(tensors, save=True)
        saved, exposed = result.saved, result.exposed
    elif not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.exposed = []
    try:
        found = ctx.call.backward(tensors, saved, exposed, grads, needs)
    except BuildError as error:  # a GPU's kernels are compiled when they are first run
        warn_without_kernels(error)
        return by_pytorch(ctx.call, tensors, grads, needs)
    if check.asked():
        expected = by_pytorch(ctx.call, tensors, grads, needs)
        asked = [g if need else None for g, need in zip(found, needs, strict=True)]
        check.compare(asked, expected, tensors, grads, ctx.call.leading, ctx.call.strategy)
    return found


def by_pytorch(call: RecurrenceCall, tensors: Given, grads: Given, needs: Sequence[bool]) -> list[Tensor | None]:
    """The same gradients by autograd over PyTorch's own ops."""
    copies = [t if t is None else t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
    with torch.enable_grad():
        return gradients_through(call.again, copies, grads, needs, create_graph=False)
