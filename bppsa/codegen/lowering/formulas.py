"""Functions of numbers as expressions of the kernel language: each takes expressions, or numbers, and returns one.

Formulas keep their digits where the naive ones lose them, and give PyTorch's values for infinities and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bppsa.codegen.language.expr import Expr, Op, const

FormulaValue = Any  # Expr | float | int | bool


def expr(value: FormulaValue) -> Expr:
    return value if isinstance(value, Expr) else const(float(value))


def build(op: Op) -> Callable[..., Expr]:
    return lambda *args: Expr(op, *map(expr, args))


def add(a: FormulaValue, b: FormulaValue) -> Expr:
    a, b = expr(a), expr(b)
    return b if a.payload == 0.0 else a if b.payload == 0.0 else Expr(Op.ADD, a, b)


def mul(a: FormulaValue, b: FormulaValue) -> Expr:
    a, b = expr(a), expr(b)
    return b if a.payload == 1.0 else a if b.payload == 1.0 else Expr(Op.MUL, a, b)


sub, div = build(Op.SUB), build(Op.DIV)
neg, absolute, exp, log, sqrt = build(Op.NEG), build(Op.ABS), build(Op.EXP), build(Op.LOG), build(Op.SQRT)
tanh, sigmoid, maximum, minimum = build(Op.TANH), build(Op.SIGMOID), build(Op.MAX), build(Op.MIN)
erf, sin, cos, atan = build(Op.ERF), build(Op.SIN), build(Op.COS), build(Op.ATAN)
erfc, erfcx, erfinv, ndtri = build(Op.ERFC), build(Op.ERFCX), build(Op.ERFINV), build(Op.NDTRI)
lgamma, digamma, zeta = build(Op.LGAMMA), build(Op.DIGAMMA), build(Op.ZETA)
i0e, i1e = build(Op.I0E), build(Op.I1E)
floor, fmod = build(Op.FLOOR), build(Op.FMOD)
lt, le, eq, where = build(Op.LT), build(Op.LE), build(Op.EQ), build(Op.WHERE)


def scaled(x: FormulaValue, alpha: float) -> FormulaValue:
    return x if alpha == 1 else mul(x, alpha)


def negate(truth: FormulaValue) -> Expr:
    return eq(truth, 0.0)


def sign(x: FormulaValue) -> Expr:
    return where(lt(0.0, x), 1.0, where(lt(x, 0.0), -1.0, 0.0))


def is_negative(x: FormulaValue) -> Expr:
    """-0.0 is."""
    return where(eq(x, 0.0), lt(div(1.0, x), 0.0), lt(x, 0.0))


def relu(x: FormulaValue) -> Expr:
    return where(le(x, 0.0), 0.0, x)  # NaN stays NaN


def clamp(x: FormulaValue, low: FormulaValue = None, high: FormulaValue = None) -> Expr:
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return const(math.nan)
    x = x if low is None else where(lt(x, low), low, x)
    return expr(x if high is None else where(lt(high, x), high, x))


def log1p_of_small(x: FormulaValue) -> Expr:
    """Exact to a few ulp: the rounding error of 1 + x cancels in the quotient (Kahan)."""
    shifted = add(1.0, x)
    return where(eq(shifted, 1.0), x, mul(log(shifted), div(x, sub(shifted, 1.0))))


def log1p(x: FormulaValue) -> Expr:
    return where(lt(x, 1e18), log1p_of_small(x), log(x))  # there the quotient of infinities would be none


def expm1(x: FormulaValue) -> Expr:
    """tanh(x/2) (e^x + 1): no cancellation for small x; exp(x) - 1 where that overflows."""
    e = exp(x)
    return where(lt(absolute(x), 1.0), mul(tanh(mul(x, 0.5)), add(e, 1.0)), sub(e, 1.0))


def softplus(x: FormulaValue, beta: float = 1, threshold: float = 20) -> Expr:
    z = scaled(x, beta)
    smooth = add(maximum(z, 0.0), log1p_of_small(exp(neg(absolute(z)))))
    return where(lt(threshold, z), x, scaled(smooth, 1 / beta))


def elu(x: FormulaValue, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    return where(le(x, 0.0), mul(alpha * scale, expm1(scaled(x, input_scale))), scaled(x, scale))


def gelu(x: FormulaValue, approximate: str = "none") -> Expr:
    if approximate == "none":
        return mul(mul(0.5, x), add(1.0, erf(mul(x, math.sqrt(0.5)))))
    inner = mul(math.sqrt(2 / math.pi), add(x, mul(0.044715, mul(x, mul(x, x)))))
    return mul(mul(0.5, x), add(1.0, tanh(inner)))


def power(x: FormulaValue, exponent: FormulaValue) -> Expr:
    """x ** exponent. The error grows with |exponent log x|, where a small whole exponent has none."""
    if not isinstance(exponent, Expr) and exponent in POWERS:
        return POWERS[exponent](x)
    size = exp(mul(exponent, log(absolute(x))))
    return where(eq(exponent, 0.0), 1.0, where(eq(x, 1.0), 1.0, signed_power(x, exponent, size)))


def signed_power(x: FormulaValue, exponent: FormulaValue, size: FormulaValue) -> Expr:
    """x ** exponent from |x| ** exponent: below 0 only whole exponents have a value, odd ones a negative."""
    whole = le(1.0, eq(floor(exponent), exponent))
    odd = negate(eq(mul(floor(mul(exponent, 0.5)), 2.0), exponent))
    finite = lt(absolute(x), math.inf)
    below = where(whole, where(odd, neg(size), size), where(finite, math.nan, size))
    negative = is_negative(x)
    zero = where(negate(whole), size, below)
    of_negative = where(eq(x, 0.0), zero, below)
    least = where(eq(absolute(x), 1.0), 1.0, size)  # of an infinite exponent, which is even
    infinite = eq(absolute(exponent), math.inf)
    return where(infinite, least, where(negative, of_negative, size))


POWERS: dict[float, Callable[[FormulaValue], Expr]] = {
    0: lambda x: const(1.0),
    1: expr,
    2: lambda x: mul(x, x),
    3: lambda x: mul(x, mul(x, x)),
    4: lambda x: square(mul(x, x)),
    0.5: sqrt,
    -1: lambda x: div(1.0, x),
    -0.5: lambda x: div(1.0, sqrt(x)),
    -2: lambda x: div(1.0, mul(x, x)),
}


def square(x: FormulaValue) -> Expr:
    return mul(x, x)


# Whole numbers -------------------------------------------------------------------------------------------------------


def ceil(x: FormulaValue) -> Expr:
    return neg(floor(neg(x)))


def trunc(x: FormulaValue) -> Expr:
    return where(lt(x, 0.0), ceil(x), floor(x))


def round_half_even(x: FormulaValue) -> Expr:
    """Rounds to the nearest whole number, and from the middle to an even one."""
    low = floor(x)
    rest = sub(x, low)  # exact
    even = eq(mul(floor(mul(low, 0.5)), 2.0), low)
    up = where(eq(rest, 0.5), negate(even), lt(0.5, rest))
    return where(up, ceil(x), low)


def remainder(a: FormulaValue, b: FormulaValue) -> Expr:
    """The remainder, with the sign of b."""
    rest = fmod(a, b)
    apart = negate(eq(lt(rest, 0.0), lt(b, 0.0)))
    return where(eq(rest, 0.0), rest, where(apart, add(rest, b), rest))


def divide(a: FormulaValue, b: FormulaValue, rounding_mode: str | None = None) -> Expr:
    """floor as PyTorch has it, from the exact remainder."""
    if rounding_mode is None:
        return div(a, b)
    if rounding_mode == "trunc":
        return trunc(div(a, b))
    rest = fmod(a, b)
    quotient = div(sub(a, rest), b)
    uneven = where(eq(rest, 0.0), 0.0, negate(eq(lt(rest, 0.0), lt(b, 0.0))))
    return where(eq(b, 0.0), div(a, b), round_half_even(sub(quotient, uneven)))


# Exponentials and logarithms -----------------------------------------------------------------------------------------


def logaddexp(a: FormulaValue, b: FormulaValue) -> Expr:
    """Equal ones apart: infinities of one sign have no difference."""
    apart = add(maximum(a, b), log1p_of_small(exp(neg(absolute(sub(a, b))))))
    return where(eq(a, b), add(a, math.log(2)), apart)


def exp2(x: FormulaValue) -> Expr:
    """e^(x ln 2), where the product's rounding is put right: ln 2 in two parts, of which whole multiples are exact."""
    whole = maximum(minimum(floor(x), 2000.0), -2000.0)
    part = sub(maximum(minimum(x, 2000.0), -2000.0), whole)
    high, low = mul(whole, LN2_HIGH), add(mul(part, math.log(2)), mul(whole, LN2_LOW))
    total = add(high, low)
    error = add(sub(high, total), low)
    value = exp(total)
    return where(lt(value, math.inf), add(value, mul(value, error)), value)


LN2_HIGH, LN2_LOW = 0.693359375, math.log(2) - 0.693359375


# Angles --------------------------------------------------------------------------------------------------------------


def atan2(y: FormulaValue, x: FormulaValue) -> Expr:
    y, x = expr(y), expr(x)
    infinite = mul(eq(absolute(y), math.inf), eq(absolute(x), math.inf))
    nothing = mul(eq(y, 0.0), eq(x, 0.0))
    ratio = where(infinite, 1.0, where(nothing, 0.0, absolute(div(y, x))))
    angle = atan(ratio)  # of the first quadrant
    turned = where(is_negative(x), sub(math.pi, angle), angle)
    return where(is_negative(y), neg(turned), turned)


def asin(x: FormulaValue) -> Expr:
    return atan2(x, sqrt(mul(sub(1.0, x), add(1.0, x))))


def acos(x: FormulaValue) -> Expr:
    return atan2(sqrt(mul(sub(1.0, x), add(1.0, x))), x)


# Hyperbolic functions ------------------------------------------------------------------------------------------------


def sinh(x: FormulaValue) -> Expr:
    """Half the exponent first: e^|x| is infinite before sinh is."""
    half = exp(mul(0.5, absolute(x)))
    far = mul(mul(0.5, half), half)
    small = expm1(absolute(x))
    near = mul(0.5, add(small, div(small, add(small, 1.0))))
    return with_sign(where(lt(absolute(x), 20.0), near, far), x)


def cosh(x: FormulaValue) -> Expr:
    half = exp(mul(0.5, absolute(x)))
    return add(mul(mul(0.5, half), half), div(div(0.5, half), half))


def asinh(x: FormulaValue) -> Expr:
    size = absolute(x)
    near = log1p(add(size, div(mul(size, size), add(1.0, sqrt(add(mul(size, size), 1.0))))))
    return with_sign(where(lt(size, 1e9), near, add(log(size), math.log(2))), x)


def acosh(x: FormulaValue) -> Expr:
    less = sub(x, 1.0)
    near = log1p(add(less, sqrt(mul(less, add(x, 1.0)))))
    value = where(lt(x, 1e9), near, add(log(x), math.log(2)))
    return where(lt(x, 1.0), math.nan, value)  # far below, `near` rounds to numbers


def atanh(x: FormulaValue) -> Expr:
    size = absolute(x)
    return with_sign(mul(0.5, log1p(div(mul(2.0, size), sub(1.0, size)))), x)


def logit(x: FormulaValue, eps: float | None = None) -> Expr:
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return log(div(x, sub(1.0, x)))


def entropy(x: FormulaValue) -> Expr:
    return where(lt(x, 0.0), -math.inf, neg(xlogy(x, x)))


def with_sign(size: FormulaValue, x: FormulaValue) -> Expr:
    """`size` with the sign of x; the zero itself where x is zero."""
    return where(eq(x, 0.0), x, where(lt(x, 0.0), neg(size), size))


# Several operands ----------------------------------------------------------------------------------------------------


def hypot(a: FormulaValue, b: FormulaValue) -> Expr:
    """Divides by the larger one first: squares leave the range before the result does."""
    a, b = absolute(a), absolute(b)
    most, least = maximum(a, b), minimum(a, b)
    ratio = div(least, most)
    length = mul(most, sqrt(add(1.0, mul(ratio, ratio))))
    infinite = le(1.0, add(eq(a, math.inf), eq(b, math.inf)))
    return where(infinite, math.inf, where(eq(most, 0.0), 0.0, length))


def lerp(a: FormulaValue, b: FormulaValue, weight: FormulaValue) -> Expr:
    """a + weight (b - a), from whichever end is nearer: an infinite end is itself at its own weight."""
    way = sub(b, a)
    from_start, from_end = add(a, mul(weight, way)), sub(b, mul(way, sub(1.0, weight)))
    if not isinstance(weight, Expr):
        return from_start if abs(weight) < 0.5 else from_end
    return where(lt(absolute(weight), 0.5), from_start, from_end)


def xlogy(x: FormulaValue, y: FormulaValue, of: Callable[[FormulaValue], Expr] = log) -> Expr:
    return where(eq(y, y), where(eq(x, 0.0), 0.0, mul(x, of(y))), math.nan)


def copysign(size: FormulaValue, sign: FormulaValue) -> Expr:
    return where(is_negative(sign), neg(absolute(size)), absolute(size))


def either_number(best: Callable[[FormulaValue, FormulaValue], Expr], a: FormulaValue, b: FormulaValue) -> Expr:
    """The better one of two numbers, and the number where the other one is a NaN."""
    return where(eq(a, a), where(eq(b, b), best(a, b), a), b)
