"""A value that has a derivative of its own: what a torch.autograd.Function of the user's gives, as an op with a J^T."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from bppsa.sparsity.operators.simple import Diagonal, Identity
from bppsa.sparsity.rules.matrix_ops import LIBRARY, as_one
from bppsa.sparsity.rules.registry import rule

LIBRARY.define("attached(Tensor value, Tensor x, Tensor slope) -> Tensor", tags=(torch.Tag.pointwise,))
ATTACHED = torch.ops.bppsa.attached.default  # value [B, *N], with slope [B, *N] as its derivative by x [B, *N]


class Attach(torch.autograd.Function):
    @staticmethod
    def forward(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        return as_one(ATTACHED, value, x, slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        """The slope is a function of x: a second derivative finds it here."""
        (slope,) = ctx.saved_tensors
        return g, g * slope, None


def has_own_gradient(node: Any) -> bool:
    """Whether an autograd node is of a torch.autograd.Function that is not ours."""
    return isinstance(node, BackwardCFunction) and getattr(node, "_forward_cls", None) is not Attach


def with_gradient(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """No Function begins in a transform of torch.func. There it is a sum, the same but for infinite x and slopes."""
    if torch._C._are_functorch_transforms_active():
        return value + slope * (x - x.detach())
    return Attach.apply(value, x, slope)


def over_batch(info: Any, dims: tuple[int | None, ...], value: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, int]:
    given = zip((value, x, slope), dims, strict=True)
    one = [t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in given]
    return ATTACHED(*one), 0


LIBRARY.impl("attached", lambda value, x, slope: value.clone(), "CompositeExplicitAutograd")
LIBRARY.impl("attached", with_gradient, "Autograd")
torch.library.register_vmap("bppsa::attached", over_batch, lib=LIBRARY)


@rule(ATTACHED)
def attached(value: Tensor, x: Tensor, slope: Tensor, *, out: Tensor) -> tuple[Identity, Diagonal, None]:
    return Identity(value, out), Diagonal(slope), None
