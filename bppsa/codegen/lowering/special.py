"""Special functions as expressions of the kernel language: what its own few give, by formulas that are PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable

from bppsa.codegen.language.expr import Expr
from bppsa.codegen.lowering import formulas as f
from bppsa.codegen.lowering.formulas import FormulaValue, add, div, mul, sub


def log_ndtr(x: FormulaValue) -> Expr:
    """The log of the normal distribution's integral: of its scaled tail where it is small."""
    z = mul(x, math.sqrt(0.5))
    below = sub(f.log(mul(f.erfcx(f.neg(z)), 0.5)), mul(z, z))
    above = f.log1p(mul(f.erfc(z), -0.5))
    return f.where(f.lt(x, -1.0), below, above)


def polygamma(n: int, x: FormulaValue) -> Expr:
    if n < 2:
        return trigamma(x) if n else f.digamma(x)
    return mul(math.factorial(n) * (-1) ** (n + 1), f.zeta(n + 1.0, x))


def trigamma(x: FormulaValue) -> Expr:
    """As PyTorch has it, with its error of some 1e-9: an asymptotic series at x + 6, and on the left a reflection."""
    left = f.lt(x, 0.5)
    y = f.where(left, sub(1.0, x), x)
    result: FormulaValue = 0.0
    for _ in range(6):
        result = add(result, div(1.0, mul(y, y)))
        y = add(y, 1.0)
    inverse = div(1.0, mul(y, y))
    series = sub(1 / 6, mul(inverse, sub(1 / 30, mul(inverse, 1 / 42))))
    result = add(result, div(add(add(1.0, div(0.5, y)), mul(inverse, series)), y))
    sine = f.sin(mul(math.pi, x))
    return f.where(left, sub(div(math.pi**2, mul(sine, sine)), result), result)


def unscaled(scaled: Callable[[FormulaValue], Expr], x: FormulaValue) -> Expr:
    """A Bessel function from what decays no more."""
    return mul(f.exp(f.absolute(x)), scaled(x))
