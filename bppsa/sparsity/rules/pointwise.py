"""Pointwise ops: J^T is diagonal. At ties, bounds and NaN the values are those of PyTorch's autograd: where its code
for the last few numbers has others than that for many at once, those for many.

Where a derivative is zero on a whole side (relu, clamp, where) the operator selects instead of multiplying by zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bppsa.common.graph import tensors_in
from bppsa.sparsity.operators.simple import Diagonal, Identity, select
from bppsa.sparsity.rules.derivatives import DERIVATIVES, SIXTH, Operand, Scalar, choose
from bppsa.sparsity.rules.registry import rule

aten = torch.ops.aten
Operators = tuple[Identity | Diagonal | None, ...]


def of_tensors(arguments: tuple[Operand, ...], operators: Operators) -> Operators:
    """The operators that belong to tensors: a number has none."""
    return tuple(op for a, op in zip(arguments, operators, strict=True) if isinstance(a, Tensor))


def like(x: Operand) -> Tensor | None:
    return x if isinstance(x, Tensor) else None


# One argument: derivatives -------------------------------------------------------------------------------------------


def from_derivative(derivative: Callable[..., Operand]) -> Callable[..., Operators]:
    def unary(x: Tensor, *args: Any, out: Tensor, **kwargs: Any) -> Operators:
        return (Diagonal(derivative(x, out, *args, **kwargs), like=x),)

    return unary


for _target, _derivative in DERIVATIVES.items():
    rule(_target)(from_derivative(_derivative))


@rule(aten.pow.Tensor_Scalar)
def power(x: Tensor, exponent: Scalar, *, out: Tensor) -> Operators:
    if exponent == 0:
        return (None,)
    return (Diagonal(x * 2 if exponent == 2 else torch.pow(x, exponent - 1) * exponent, like=x),)


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid(x: Tensor, *, out: tuple[Tensor, Tensor]) -> tuple[Operators, Operators]:
    return (Diagonal(torch.sigmoid(-x)),), (None,)  # the second output is a buffer of PyTorch's own backward


# One argument: selections --------------------------------------------------------------------------------------------


@rule(aten.relu.default)
def relu(x: Tensor, *, out: Tensor) -> Operators:
    return (select(torch.logical_not(out <= 0), x),)  # not `out > 0`: PyTorch lets the cotangent of a NaN pass


@rule(aten.hardtanh.default)
def hardtanh(x: Tensor, low: Scalar = -1, high: Scalar = 1, *, out: Tensor) -> Operators:
    return (select(torch.logical_and(x > low, x < high), x),)


@rule(aten.clamp.default)
def clamp(x: Tensor, min: Scalar | None = None, max: Scalar | None = None, *, out: Tensor) -> Operators:
    bounds = ([] if min is None else [x >= min]) + ([] if max is None else [x <= max])
    return (select(functools.reduce(torch.logical_and, bounds), x),)


@rule(aten.clamp_min.default)
def clamp_min(x: Tensor, min: Scalar, *, out: Tensor) -> Operators:
    return clamp(x, min, out=out)


@rule(aten.clamp_max.default)
def clamp_max(x: Tensor, max: Scalar, *, out: Tensor) -> Operators:
    return clamp(x, None, max, out=out)


@rule(aten.threshold.default)
def threshold(x: Tensor, threshold: Scalar, value: Scalar, *, out: Tensor) -> Operators:
    return (select(torch.logical_not(x <= threshold), x),)


@rule(aten.hardshrink.default, aten.softshrink.default)
def shrink(x: Tensor, bound: Scalar = 0.5, *, out: Tensor) -> Operators:
    return (select(torch.logical_or(x < -bound, x > bound), x),)


@rule(aten.hardsigmoid.default)
def hardsigmoid(x: Tensor, *, out: Tensor) -> Operators:
    return (select(torch.logical_and(x > -3, x < 3), x, SIXTH),)


@rule(aten.hardswish.default)
def hardswish(x: Tensor, *, out: Tensor) -> Operators:
    return (select(torch.logical_not(x <= -3), x, choose(x >= 3, 1.0, x / 3 + 0.5, x)),)


@rule(aten.masked_fill.Scalar)
def masked_fill(x: Tensor, mask: Tensor, value: Scalar, *, out: Tensor) -> Operators:
    return select(torch.logical_not(mask), x), None


@rule(aten.where.self)
def where(condition: Tensor, x: Tensor, y: Tensor, *, out: Tensor) -> Operators:
    return None, select(condition, x), select(torch.logical_not(condition), y)


# Two and more arguments ----------------------------------------------------------------------------------------------


def scaling(factor: Scalar, x: Operand, out: Tensor) -> Identity | Diagonal | None:
    if not isinstance(x, Tensor):
        return None
    return Identity(x, out) if factor == 1 else Diagonal(factor, like=x)


@rule(aten.add.Tensor, aten.add.Scalar)
def add(a: Operand, b: Operand, alpha: Scalar = 1, *, out: Tensor) -> Operators:
    return of_tensors((a, b), (scaling(1, a, out), scaling(alpha, b, out)))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def sub(a: Operand, b: Operand, alpha: Scalar = 1, *, out: Tensor) -> Operators:
    return of_tensors((a, b), (scaling(1, a, out), scaling(-alpha, b, out)))


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(a: Operand, b: Operand, alpha: Scalar = 1, *, out: Tensor) -> Operators:
    return of_tensors((a, b), (scaling(-alpha, a, out), scaling(1, b, out)))


@rule(aten.mul.Tensor, aten.mul.Scalar)
def mul(a: Operand, b: Operand, *, out: Tensor) -> Operators:
    return of_tensors((a, b), (Diagonal(b, like=like(a)), Diagonal(a, like=like(b))))


@rule(aten.div.Tensor, aten.div.Scalar)
def div(a: Operand, b: Operand, *, out: Tensor) -> Operators:
    if not isinstance(b, Tensor):
        return (Diagonal(1 / b if b else math.copysign(math.inf, b), like=like(a)),)
    inverse = torch.reciprocal(b)
    return of_tensors((a, b), (Diagonal(inverse), Diagonal(-(out * inverse))))


@rule(aten.addcmul.default)
def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Scalar = 1, out: Tensor) -> Operators:
    return Identity(x, out), Diagonal(b if value == 1 else b * value), Diagonal(a if value == 1 else a * value)


@rule(aten.lerp.Tensor, aten.lerp.Scalar)
def lerp(start: Tensor, end: Tensor, weight: Operand, *, out: Tensor) -> Operators:
    operators = Diagonal(1 - weight, like=start), Diagonal(weight, like=end), Diagonal(end - start)
    return of_tensors((start, end, weight), operators)


def extremum(a: Tensor, b: Tensor, loses: Tensor, wins: Tensor) -> Operators:
    """The winner's cotangent passes; at a tie each gets half; a NaN on either side lets both pass."""
    share = choose(a == b, 0.5, 1.0, a)
    return select(torch.logical_not(loses), a, share), select(torch.logical_not(wins), b, share)


@rule(aten.maximum.default)
def maximum(a: Tensor, b: Tensor, *, out: Tensor) -> Operators:
    return extremum(a, b, loses=a < b, wins=a > b)


@rule(aten.minimum.default)
def minimum(a: Tensor, b: Tensor, *, out: Tensor) -> Operators:
    return extremum(a, b, loses=a > b, wins=a < b)


@rule(aten.fmax.default)
def fmax(a: Tensor, b: Tensor, *, out: Tensor) -> Operators:
    return better(a, b, torch.logical_or(a >= b, torch.isnan(b)))


@rule(aten.fmin.default)
def fmin(a: Tensor, b: Tensor, *, out: Tensor) -> Operators:
    return better(a, b, torch.logical_or(a <= b, torch.isnan(b)))


def better(a: Tensor, b: Tensor, first: Tensor) -> Operators:
    """The cotangent goes to the first at a tie."""
    return select(first, a), select(torch.logical_not(first), b)


@rule(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(size: Tensor, sign: Operand, *, out: Tensor) -> Operators:
    ratio = torch.where(size == 0, 0.0, out / size)
    return (Diagonal(ratio), None) if isinstance(sign, Tensor) else (Diagonal(ratio),)


# No gradient ---------------------------------------------------------------------------------------------------------

COMPARISONS = [getattr(aten, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")]


@rule(
    *(op.Tensor for op in COMPARISONS),
    *(op.Scalar for op in COMPARISONS),
    *(getattr(aten, name).default for name in ("logical_not", "logical_and", "logical_or", "logical_xor")),
    *(getattr(aten, name).Tensor for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    *(
        getattr(aten, name).default
        for name in ("bitwise_not", "isnan", "isinf", "sign", "signbit", "floor", "ceil", "round", "trunc")
    ),
    *(getattr(aten, name).default for name in ("zeros_like", "ones_like", "full_like", "detach")),
    *(getattr(aten, name).default for name in ("new_zeros", "new_ones", "new_full", "new_empty")),
    *(getattr(aten, name).default for name in ("zeros", "ones", "full", "scalar_tensor")),
)
def no_gradient(*args: Any, out: Tensor, **kwargs: Any) -> Operators:
    return tuple(None for leaf in tensors_in((args, kwargs)))
