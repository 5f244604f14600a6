"""ATen's pointwise ops in the kernel language: one line an op. A builder takes expressions (or numbers) and returns
one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bppsa.codegen.language.expr import Expr
from bppsa.codegen.lowering import formulas as f
from bppsa.codegen.lowering import special
from bppsa.sparsity.rules.matrix_ops import CHECKED
from bppsa.sparsity.rules.own_gradient import ATTACHED

aten = torch.ops.aten


def bounded(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    x = x if low is None else f.maximum(x, low)
    return x if high is None else f.minimum(x, high)


def both(op: Any, builder: Callable[..., Expr | None]) -> dict[Any, Callable[..., Expr | None]]:
    """The lines of an op that takes a second tensor, or a number in its place."""
    return {op.Tensor: builder, op.Scalar: builder}


# A builder returns None for arguments it has no expression for.
POINTWISE: dict[Any, Callable[..., Expr | None]] = {
    **both(aten.add, lambda a, b, alpha=1: f.add(a, f.scaled(b, alpha))),
    **both(aten.sub, lambda a, b, alpha=1: f.sub(a, f.scaled(b, alpha))),
    **both(aten.rsub, lambda a, b, alpha=1: f.sub(b, f.scaled(a, alpha))),
    **both(aten.mul, f.mul),
    **both(aten.div, f.div),
    aten.neg.default: f.neg,
    aten.abs.default: f.absolute,
    aten.sign.default: f.sign,
    aten.signbit.default: f.is_negative,
    aten.exp.default: f.exp,
    aten.log.default: f.log,
    aten.log1p.default: f.log1p,
    aten.expm1.default: f.expm1,
    aten.sqrt.default: f.sqrt,
    aten.rsqrt.default: lambda x: f.div(1.0, f.sqrt(x)),
    aten.reciprocal.default: lambda x: f.div(1.0, x),
    aten.pow.Tensor_Scalar: f.power,
    aten.tanh.default: f.tanh,
    aten.sigmoid.default: f.sigmoid,
    aten.relu.default: f.relu,
    aten.leaky_relu.default: lambda x, slope=0.01: f.where(f.lt(0.0, x), x, f.mul(slope, x)),
    aten.silu.default: lambda x: f.mul(x, f.sigmoid(x)),
    aten.softplus.default: f.softplus,
    aten.mish.default: lambda x: f.mul(x, f.tanh(f.softplus(x, threshold=math.inf))),
    aten.elu.default: f.elu,
    aten.celu.default: lambda x, alpha=1.0: f.elu(x, alpha, 1, 1 / alpha),
    aten.gelu.default: f.gelu,
    aten.erf.default: f.erf,
    aten.erfc.default: f.erfc,
    aten.special_erfcx.default: f.erfcx,
    aten.erfinv.default: f.erfinv,
    aten.special_ndtri.default: f.ndtri,
    aten.special_log_ndtr.default: special.log_ndtr,
    aten.lgamma.default: f.lgamma,
    aten.digamma.default: f.digamma,
    aten.polygamma.default: special.polygamma,
    aten.special_zeta.self_scalar: f.zeta,
    aten.i0.default: lambda x: special.unscaled(f.i0e, x),
    aten.special_i0e.default: f.i0e,
    aten.special_i1.default: lambda x: special.unscaled(f.i1e, x),
    aten.special_i1e.default: f.i1e,
    aten.threshold.default: lambda x, threshold, value: f.where(f.le(x, threshold), value, x),
    aten.hardshrink.default: lambda x, bound=0.5: f.where(f.le(f.absolute(x), bound), 0.0, x),
    aten.softshrink.default: lambda x, bound=0.5: f.sub(x, f.clamp(x, -bound, bound)),
    aten.hardtanh.default: lambda x, low=-1.0, high=1.0: f.clamp(x, low, high),
    aten.hardsigmoid.default: lambda x: f.div(f.clamp(f.add(x, 3.0), 0.0, 6.0), 6.0),
    aten.hardswish.default: lambda x: f.mul(x, f.div(f.clamp(f.add(x, 3.0), 0.0, 6.0), 6.0)),
    aten.clamp.default: f.clamp,
    aten.clamp_min.default: f.clamp,
    aten.clamp_max.default: lambda x, high: f.clamp(x, None, high),
    aten.maximum.default: f.maximum,
    aten.minimum.default: f.minimum,
    aten.where.self: f.where,
    aten.where.ScalarSelf: f.where,
    aten.where.ScalarOther: f.where,
    aten.where.Scalar: f.where,
    **both(aten.masked_fill, lambda x, mask, value: f.where(mask, value, x)),
    **both(aten.lt, f.lt),
    **both(aten.le, f.le),
    **both(aten.gt, lambda a, b: f.lt(b, a)),
    **both(aten.ge, lambda a, b: f.le(b, a)),
    **both(aten.eq, f.eq),
    **both(aten.ne, lambda a, b: f.negate(f.eq(a, b))),
    aten.logical_not.default: f.negate,
    aten.bitwise_not.default: f.negate,  # of booleans; the lowering refuses integers
    aten.logical_and.default: lambda a, b: f.where(a, f.negate(f.negate(b)), 0.0),
    aten.logical_or.default: lambda a, b: f.where(a, 1.0, f.negate(f.negate(b))),
    aten.bitwise_and.Tensor: lambda a, b: f.where(a, b, 0.0),
    aten.bitwise_or.Tensor: lambda a, b: f.where(a, 1.0, b),
    aten.sin.default: f.sin,
    aten.cos.default: f.cos,
    aten.tan.default: lambda x: f.div(f.sin(x), f.cos(x)),
    aten.asin.default: f.asin,
    aten.acos.default: f.acos,
    aten.atan.default: f.atan,
    aten.atan2.default: f.atan2,
    aten.sinh.default: f.sinh,
    aten.cosh.default: f.cosh,
    aten.asinh.default: f.asinh,
    aten.acosh.default: f.acosh,
    aten.atanh.default: f.atanh,
    aten.exp2.default: f.exp2,
    aten.log2.default: lambda x: f.mul(f.log(x), 1 / math.log(2)),
    aten.log10.default: lambda x: f.mul(f.log(x), 1 / math.log(10)),
    aten.logaddexp.default: f.logaddexp,
    aten.xlogy.Tensor: f.xlogy,
    aten.xlogy.Scalar_Self: f.xlogy,
    aten.xlogy.Scalar_Other: f.xlogy,
    aten.special_xlog1py.default: lambda x, y: f.xlogy(x, y, f.log1p),
    aten.special_xlog1py.self_scalar: lambda x, y: f.xlogy(x, y, f.log1p),
    aten.special_xlog1py.other_scalar: lambda x, y: f.xlogy(x, y, f.log1p),
    aten.logit.default: f.logit,
    aten.special_entr.default: f.entropy,
    aten.square.default: f.square,
    aten.hypot.default: f.hypot,
    aten.pow.Tensor_Tensor: f.power,
    aten.pow.Scalar: f.power,
    aten.floor.default: f.floor,
    aten.ceil.default: f.ceil,
    aten.trunc.default: f.trunc,
    aten.round.default: f.round_half_even,
    aten.frac.default: lambda x: f.sub(x, f.trunc(x)),
    **both(aten.fmod, f.fmod),
    **both(aten.remainder, f.remainder),
    aten.remainder.Scalar_Tensor: f.remainder,
    aten.div.Tensor_mode: f.divide,
    aten.div.Scalar_mode: f.divide,
    aten.floor_divide.default: lambda a, b: f.divide(a, b, "floor"),
    aten.floor_divide.Scalar: lambda a, b: f.divide(a, b, "floor"),
    aten.clamp.Tensor: lambda x, low=None, high=None: bounded(x, low, high),
    aten.clamp_min.Tensor: lambda x, low: f.maximum(x, low),
    aten.clamp_max.Tensor: lambda x, high: f.minimum(x, high),
    aten.fmax.default: lambda a, b: f.either_number(f.maximum, a, b),
    aten.fmin.default: lambda a, b: f.either_number(f.minimum, a, b),
    **both(aten.copysign, f.copysign),
    aten.deg2rad.default: lambda x: f.mul(x, math.pi / 180),
    aten.rad2deg.default: lambda x: f.mul(x, 180 / math.pi),
    **both(aten.lerp, f.lerp),
    aten.isnan.default: lambda x: f.negate(f.eq(x, x)),
    aten.isinf.default: lambda x: f.eq(f.absolute(x), math.inf),
    aten.heaviside.default: lambda x, at: f.where(f.eq(x, 0.0), at, f.lt(0.0, x)),
    ATTACHED: lambda value, x, slope: value,
    CHECKED: lambda x: x,
    aten.logical_xor.default: lambda a, b: f.negate(f.eq(f.negate(a), f.negate(b))),
    aten.bitwise_xor.Tensor: lambda a, b: f.negate(f.eq(a, b)),
}
