"""Derivatives of pointwise ops of one argument, in PyTorch's ops: from x, and from the op's value."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


Scalar = float | int


Operand = Tensor | Scalar


def choose(condition: Tensor, yes: Operand, no: Operand, like: Tensor) -> Tensor:
    """`torch.where` in the dtype of `like`, which two numbers alone would not have."""
    return torch.where(condition, yes if isinstance(yes, Tensor) else like.new_full((), yes), no)


def silu(x: Tensor, out: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def gelu(x: Tensor, out: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return (torch.erf(x * math.sqrt(0.5)) + 1) * 0.5 + x * density
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh((x + x * x * x * cubic) * scale)
    return (t + 1) * 0.5 + x * (1 - t * t) * (x * x * (3 * cubic) + 1) * (0.5 * scale)


def in_single(number: float) -> float:
    """PyTorch's backward holds some constants in single precision, whatever the tensors' dtype is."""
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


SIXTH = in_single(1 / 6)


def elu(x: Tensor, out: Tensor, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Tensor:
    return choose(x > 0, scale, torch.exp(x * input_scale) * (alpha * scale * input_scale), x)


def softplus(x: Tensor, out: Tensor, beta: Scalar = 1, threshold: Scalar = 20) -> Tensor:
    return choose(x * beta > threshold, 1.0, torch.sigmoid(x * beta), x)


def mish(x: Tensor, out: Tensor) -> Tensor:
    t = torch.tanh(torch.nn.functional.softplus(x, threshold=math.inf))
    return t + x * torch.sigmoid(x) * (1 - t * t)


def erf(x: Tensor, out: Tensor) -> Tensor:
    return torch.exp(-(x * x)) * (2 / math.sqrt(math.pi))


def beside_zero(x: Tensor, derivative: Tensor) -> Tensor:
    """The derivative of a Bessel function of order one: 1/2 at zero, as PyTorch has it."""
    return torch.where(torch.abs(x) > torch.finfo(x.dtype).eps, derivative, 0.5)


def logit(x: Tensor, out: Tensor, eps: float | None = None) -> Tensor:
    """Outside NaN, or 0 where the value is bounded."""
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    within = torch.logical_and(x >= low, x <= high)
    return choose(within, torch.reciprocal(x * (1 - x)), outside, x)


DERIVATIVES: dict[Any, Callable[..., Operand]] = {
    aten.neg.default: lambda x, out: -1.0,
    aten.abs.default: lambda x, out: torch.sign(x),
    aten.exp.default: lambda x, out: out,
    aten.expm1.default: lambda x, out: out + 1,
    aten.log.default: lambda x, out: torch.reciprocal(x),
    aten.log1p.default: lambda x, out: torch.reciprocal(x + 1),
    aten.sqrt.default: lambda x, out: 0.5 / out,
    aten.rsqrt.default: lambda x, out: out * out * out * -0.5,
    aten.reciprocal.default: lambda x, out: -(out * out),
    aten.sin.default: lambda x, out: torch.cos(x),
    aten.cos.default: lambda x, out: -torch.sin(x),
    aten.tanh.default: lambda x, out: 1 - out * out,
    aten.sigmoid.default: lambda x, out: out * (1 - out),
    aten.silu.default: silu,
    aten.gelu.default: gelu,
    aten.elu.default: elu,
    aten.softplus.default: softplus,
    aten.mish.default: mish,
    aten.logit.default: logit,
    aten.special_entr.default: lambda x, out: -(torch.log(x) + 1),
    aten.celu.default: lambda x, out, alpha=1.0: elu(x, out, alpha, 1, 1 / in_single(alpha)),
    aten.erf.default: erf,
    aten.special_i1.default: lambda x, out: beside_zero(x, torch.i0(x) - out / x),
    aten.special_i1e.default: lambda x, out: beside_zero(
        x, torch.special.i0e(x) - out * (torch.sign(x) + torch.reciprocal(x))
    ),
    aten.atanh.default: lambda x, out: torch.reciprocal(1 - x * x),
    aten.leaky_relu.default: lambda x, out, slope=0.01: choose(x > 0, 1.0, slope, x),
}
