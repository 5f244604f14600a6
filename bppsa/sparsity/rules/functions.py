"""The long tail of pointwise ops: J^T is diagonal, and PyTorch's own autograd says with what.

An op that a scan's kernels print has its derivative written out in `pointwise.py`; here a name is enough.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, ops
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map

from bppsa.common.graph import tensors_in
from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.simple import Diagonal, select
from bppsa.sparsity.rules.pointwise import Operators
from bppsa.sparsity.rules.registry import rule

aten = ops.aten

DIFFERENTIABLE = """
    acos acosh addcdiv asin asinh atan atan2 cosh deg2rad digamma
    clamp.Tensor clamp_max.Tensor clamp_min.Tensor div.Tensor_mode div.Scalar_mode erfc erfinv exp2
    fmod.Tensor fmod.Scalar frac hypot i0 lgamma polygamma log10 log2 logaddexp logaddexp2 max.other min.other
    nan_to_num pow.Tensor_Tensor pow.Scalar rad2deg relu6 remainder.Tensor remainder.Scalar
    selu sinc sinh special_erfcx special_i0e special_log_ndtr special_ndtri
    special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar special_zeta.self_scalar square
    tan where.ScalarSelf where.ScalarOther xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self
"""


def overload(name: str) -> OpOverload:
    packet, _, which = name.partition(".")
    return getattr(getattr(aten, packet), which or "default")


def by_autograd(op: OpOverload) -> Any:
    """The rule of a pointwise op whose arguments have one shape: the sum's gradient holds every derivative."""

    def pointwise(*args: Any, out: Tensor, **kwargs: Any) -> Operators:
        with torch.enable_grad(), saved_tensors_hooks(as_it_is, as_it_is):  # not those around
            arguments = tree_map(watched, args)
            tensors = tensors_in(arguments)
            real = [a for a in tensors if a.requires_grad]
            y = op(*arguments, **kwargs)
            found = iter(torch.autograd.grad(y, real, torch.ones_like(y), allow_unused=True))
        derivatives = [next(found) if a.requires_grad else None for a in tensors]
        return tuple(None if d is None else Diagonal(d) for d in derivatives)

    return pointwise


def as_it_is(a: Tensor) -> Tensor:
    return a


def watched(a: Any) -> Any:
    return a.detach().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a


for _name in DIFFERENTIABLE.split():
    rule(overload(_name))(by_autograd(overload(_name)))


@rule(aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor, *, out: Tensor) -> tuple[Diagonal, None, AcrossRows]:
    """value: one number for all rows."""
    of_value = AcrossRows(lambda g: torch.where(mask, g, 0.0).sum_to_size(value.shape))
    return select(torch.logical_not(mask), x), None, of_value


@rule(aten.native_dropout.default)
def native_dropout(x: Tensor, p: float, train: bool, *, out: tuple[Tensor, Tensor]) -> tuple[Operators, Operators]:
    """The second output is the mask that was drawn."""
    if not train:
        return (Diagonal(1.0, like=x),), (None,)
    return (select(out[1], x, 1 / (1 - p) if p < 1 else 0.0),), (None,)


@rule(aten._prelu_kernel.default)
def prelu(x: Tensor, slope: Tensor, *, out: Tensor) -> tuple[Diagonal, AcrossRows]:
    """slope: one for all elements, or one a channel, as [1, C, 1, ...]."""
    d = torch.where(x > 0, 1.0, slope)
    return Diagonal(d), AcrossRows(lambda g: torch.where(x > 0, 0.0, g * x).sum_to_size(slope.shape))
