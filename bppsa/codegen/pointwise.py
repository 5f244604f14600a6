"""ATen's pointwise ops in the kernel language: one line an op. A builder takes expressions (or numbers) and returns
one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bppsa.codegen.ir import Expr, Op, const

aten = torch.ops.aten
Value = Any  # Expr | float | int | bool


def expr(value: Value) -> Expr:
    return value if isinstance(value, Expr) else const(float(value))


def build(op: Op) -> Callable[..., Expr]:
    return lambda *args: Expr(op, *map(expr, args))


def add(a: Value, b: Value) -> Expr:
    a, b = expr(a), expr(b)
    return b if a.payload == 0.0 else a if b.payload == 0.0 else Expr(Op.ADD, a, b)


def mul(a: Value, b: Value) -> Expr:
    a, b = expr(a), expr(b)
    return b if a.payload == 1.0 else a if b.payload == 1.0 else Expr(Op.MUL, a, b)


sub, div = build(Op.SUB), build(Op.DIV)
neg, absolute, exp, log, sqrt = build(Op.NEG), build(Op.ABS), build(Op.EXP), build(Op.LOG), build(Op.SQRT)
tanh, sigmoid, maximum, minimum = build(Op.TANH), build(Op.SIGMOID), build(Op.MAX), build(Op.MIN)
erf = build(Op.ERF)
lt, le, eq, where = build(Op.LT), build(Op.LE), build(Op.EQ), build(Op.WHERE)


def scaled(x: Value, alpha: float) -> Value:
    return x if alpha == 1 else mul(x, alpha)


def negate(truth: Value) -> Expr:
    return eq(truth, 0.0)


def relu(x: Value) -> Expr:
    return where(le(x, 0.0), 0.0, x)  # NaN stays NaN


def clamp(x: Value, low: Value = None, high: Value = None) -> Expr:
    x = x if low is None else where(lt(x, low), low, x)
    return expr(x if high is None else where(lt(high, x), high, x))


def log1p_of_small(x: Value) -> Expr:
    """Exact to a few ulp: the rounding error of 1 + x cancels in the quotient (Kahan)."""
    shifted = add(1.0, x)
    return where(eq(shifted, 1.0), x, mul(log(shifted), div(x, sub(shifted, 1.0))))


def log1p(x: Value) -> Expr:
    return where(lt(x, 1e18), log1p_of_small(x), log(x))  # there the quotient of infinities would be none


def expm1(x: Value) -> Expr:
    """tanh(x/2) (e^x + 1): no cancellation for small x; exp(x) - 1 where that overflows."""
    e = exp(x)
    return where(lt(absolute(x), 1.0), mul(tanh(mul(x, 0.5)), add(e, 1.0)), sub(e, 1.0))


def softplus(x: Value, beta: float = 1, threshold: float = 20) -> Expr:
    z = scaled(x, beta)
    smooth = add(maximum(z, 0.0), log1p_of_small(exp(neg(absolute(z)))))
    return where(lt(threshold, z), x, scaled(smooth, 1 / beta))


def elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    return where(le(x, 0.0), mul(alpha * scale, expm1(scaled(x, input_scale))), scaled(x, scale))


def gelu(x: Value, approximate: str = "none") -> Expr:
    if approximate == "none":
        return mul(mul(0.5, x), add(1.0, erf(mul(x, math.sqrt(0.5)))))
    inner = mul(math.sqrt(2 / math.pi), add(x, mul(0.044715, mul(x, mul(x, x)))))
    return mul(mul(0.5, x), add(1.0, tanh(inner)))


def power(x: Value, exponent: float) -> Expr | None:
    return POWERS[exponent](x) if exponent in POWERS else None


POWERS: dict[float, Callable[[Value], Expr]] = {
    1: expr,
    2: lambda x: mul(x, x),
    3: lambda x: mul(x, mul(x, x)),
    0.5: sqrt,
    -1: lambda x: div(1.0, x),
    -0.5: lambda x: div(1.0, sqrt(x)),
    -2: lambda x: div(1.0, mul(x, x)),
}

# A builder returns None for arguments it has no expression for.
POINTWISE: dict[Any, Callable[..., Expr | None]] = {
    aten.add.Tensor: lambda a, b, alpha=1: add(a, scaled(b, alpha)),
    aten.add.Scalar: lambda a, b, alpha=1: add(a, scaled(b, alpha)),
    aten.sub.Tensor: lambda a, b, alpha=1: sub(a, scaled(b, alpha)),
    aten.sub.Scalar: lambda a, b, alpha=1: sub(a, scaled(b, alpha)),
    aten.rsub.Scalar: lambda a, b, alpha=1: sub(b, scaled(a, alpha)),
    aten.rsub.Tensor: lambda a, b, alpha=1: sub(b, scaled(a, alpha)),
    aten.mul.Tensor: mul,
    aten.mul.Scalar: mul,
    aten.div.Tensor: div,
    aten.div.Scalar: div,
    aten.neg.default: neg,
    aten.abs.default: absolute,
    aten.sign.default: lambda x: where(lt(0.0, x), 1.0, where(lt(x, 0.0), -1.0, 0.0)),
    aten.exp.default: exp,
    aten.log.default: log,
    aten.log1p.default: log1p,
    aten.expm1.default: expm1,
    aten.sqrt.default: sqrt,
    aten.rsqrt.default: lambda x: div(1.0, sqrt(x)),
    aten.reciprocal.default: lambda x: div(1.0, x),
    aten.pow.Tensor_Scalar: power,
    aten.tanh.default: tanh,
    aten.sigmoid.default: sigmoid,
    aten.relu.default: relu,
    aten.leaky_relu.default: lambda x, slope=0.01: where(lt(0.0, x), x, mul(slope, x)),
    aten.silu.default: lambda x: mul(x, sigmoid(x)),
    aten.softplus.default: softplus,
    aten.mish.default: lambda x: mul(x, tanh(softplus(x, threshold=math.inf))),
    aten.elu.default: elu,
    aten.celu.default: lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha),
    aten.gelu.default: gelu,
    aten.erf.default: erf,
    aten.threshold.default: lambda x, threshold, value: where(le(x, threshold), value, x),
    aten.hardshrink.default: lambda x, bound=0.5: where(le(absolute(x), bound), 0.0, x),
    aten.softshrink.default: lambda x, bound=0.5: sub(x, clamp(x, -bound, bound)),
    aten.hardtanh.default: lambda x, low=-1.0, high=1.0: clamp(x, low, high),
    aten.hardsigmoid.default: lambda x: div(clamp(add(x, 3.0), 0.0, 6.0), 6.0),
    aten.hardswish.default: lambda x: mul(x, div(clamp(add(x, 3.0), 0.0, 6.0), 6.0)),
    aten.clamp.default: clamp,
    aten.clamp_min.default: clamp,
    aten.clamp_max.default: lambda x, high: clamp(x, None, high),
    aten.maximum.default: maximum,
    aten.minimum.default: minimum,
    aten.where.self: where,
    aten.where.ScalarSelf: where,
    aten.where.ScalarOther: where,
    aten.where.Scalar: where,
    aten.masked_fill.Scalar: lambda x, mask, value: where(mask, value, x),
    aten.masked_fill.Tensor: lambda x, mask, value: where(mask, value, x),
    aten.lt.Tensor: lt,
    aten.lt.Scalar: lt,
    aten.le.Tensor: le,
    aten.le.Scalar: le,
    aten.gt.Tensor: lambda a, b: lt(b, a),
    aten.gt.Scalar: lambda a, b: lt(b, a),
    aten.ge.Tensor: lambda a, b: le(b, a),
    aten.ge.Scalar: lambda a, b: le(b, a),
    aten.eq.Tensor: eq,
    aten.eq.Scalar: eq,
    aten.ne.Tensor: lambda a, b: negate(eq(a, b)),
    aten.ne.Scalar: lambda a, b: negate(eq(a, b)),
    aten.logical_not.default: negate,
    aten.bitwise_not.default: negate,  # of booleans; the lowering refuses integers
    aten.logical_and.default: lambda a, b: where(a, negate(negate(b)), 0.0),
    aten.logical_or.default: lambda a, b: where(a, 1.0, negate(negate(b))),
    aten.bitwise_and.Tensor: lambda a, b: where(a, b, 0.0),
    aten.bitwise_or.Tensor: lambda a, b: where(a, 1.0, b),
}
