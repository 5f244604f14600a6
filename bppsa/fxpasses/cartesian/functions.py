"""Functions of complex values that a carry waits for, in terms of real ones: further rows.

At zero they have PyTorch's values and gradients, and no square leaves the range where the result is within it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.cartesian import fourier
from bppsa.fxpasses.cartesian.numbers import Cartesian, cartesian, each, multiply, over
from bppsa.fxpasses.cartesian.rows import ARITHMETIC, CartesianRow

aten = torch.ops.aten
MOST_FACTORS = 8  # of a power that is written as a product


def both(z: Cartesian) -> tuple[Tensor, Tensor]:
    """Its parts as tensors; of a value that the carry waits for one of them is."""
    like: Any = z.re if isinstance(z.re, Tensor) else z.im
    re, im = (torch.zeros_like(like) if part is None else part for part in z)
    return re, im


# Quotients and powers -------------------------------------------------------------------------------------------------


def quotient(a: Any, b: Any) -> Cartesian:
    a, b = cartesian(a), cartesian(b)
    if b.im is None and b.re is not None:
        return each(lambda part: over(part, b.re), a)
    if not isinstance(b.re, Tensor) and not isinstance(b.im, Tensor):
        return multiply(a, cartesian(1 / complex(b.re or 0.0, b.im or 0.0)))
    c, d = both(b)
    re, im = (part if isinstance(part, Tensor) else torch.full_like(c, part or 0.0) for part in a)
    return by_larger_part(re, im, c, d)


def by_larger_part(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Cartesian:
    """(a + b i) / (c + d i), where no square of c or d can leave the range (Smith, 1962)."""
    turned = c.abs() < d.abs()
    larger, smaller = torch.where(turned, d, c), torch.where(turned, c, d)
    p, q = torch.where(turned, b, a), torch.where(turned, a, b)
    ratio = torch.where(larger == 0, 0.0, smaller / larger)
    length = larger + smaller * ratio
    im = (q - p * ratio) / length
    return Cartesian((p + q * ratio) / length, torch.where(turned, -im, im))


def power(z: Cartesian, exponent: Any) -> Any:
    if exponent == 0.5:
        return sqrt(z)
    if not isinstance(exponent, (int, float)) or exponent != int(exponent) or not 0 < abs(exponent) <= MOST_FACTORS:
        return NotImplemented
    factor = z if exponent > 0 else quotient(1.0, z)
    made = factor
    for _ in range(abs(int(exponent)) - 1):
        made = multiply(made, factor)
    return made


def sqrt(z: Cartesian) -> Cartesian:
    """The root with a real part that is not negative. The larger part comes first, so that nothing cancels."""
    a, b = both(z)
    larger = torch.sqrt((torch.where(a >= 0, a, -a) + torch.hypot(a, b)) / 2)
    sign = torch.copysign(torch.ones_like(b), b)
    smaller = torch.where(larger == 0, 0.0, sign * b / (2 * larger))
    return Cartesian(torch.where(a >= 0, larger, smaller), sign * torch.where(a >= 0, smaller, larger))


# Length and angle -----------------------------------------------------------------------------------------------------


def is_zero(z: Cartesian) -> Tensor:
    a, b = both(z)
    return torch.logical_and(a == 0, b == 0)


def length(z: Cartesian) -> Tensor:
    """Its gradient is zero at zero."""
    a, b = both(z)
    zero = is_zero(z)
    return torch.where(zero, 0.0, torch.hypot(torch.where(zero, 1.0, a), b))


def angle(z: Cartesian) -> Tensor:
    """Its gradient is zero at zero."""
    a, b = both(z)
    zero = is_zero(z)
    return torch.where(zero, torch.atan2(b, a).detach(), argument(torch.where(zero, 1.0, a), b))


def argument(a: Tensor, b: Tensor) -> Tensor:
    """The angle of a + b i. Scaled, as the derivative squares both."""
    largest = torch.maximum(a.abs(), b.abs()).detach()
    scale = torch.where(torch.logical_or(largest == 0, torch.isinf(largest)), 1.0, largest)
    return torch.atan2(b / scale, a / scale)


def direction(z: Cartesian) -> Cartesian:
    """z / |z|, and zero at zero."""
    zero, size = is_zero(z), length(z)
    scale = torch.where(zero, 1.0, size)
    return each(lambda part: torch.where(zero, 0.0, part / scale), z)


def log(z: Cartesian) -> Cartesian:
    a, b = both(z)
    return Cartesian(torch.log(torch.hypot(a, b)), argument(a, b))


# Circular and hyperbolic functions ------------------------------------------------------------------------------------


def tanh(z: Cartesian) -> Cartesian:
    """(t + i s c (1 - t^2)) / (c^2 + t^2 s^2), t = tanh re, s = sin im, c = cos im: in range for any z."""
    a, b = both(z)
    t, s, c = torch.tanh(a), torch.sin(b), torch.cos(b)
    size = c * c + t * t * (s * s)
    return Cartesian(t / size, s * c * (1 - t * t) / size)


def sigmoid(z: Cartesian) -> Cartesian:
    half = tanh(each(lambda part: part * 0.5, z))
    re, im = both(half)
    return Cartesian(0.5 + 0.5 * re, 0.5 * im)


def circular(f: Any, other: Any, sign: int) -> CartesianRow:
    """f(a) cosh b + sign i other(a) sinh b"""

    def row(z: Cartesian) -> Cartesian:
        a, b = both(z)
        return Cartesian(f(a) * torch.cosh(b), sign * other(a) * torch.sinh(b))

    return row


def hyperbolic(f: Any, other: Any) -> CartesianRow:
    """f(a) cos b + i other(a) sin b"""

    def row(z: Cartesian) -> Cartesian:
        a, b = both(z)
        return Cartesian(f(a) * torch.cos(b), other(a) * torch.sin(b))

    return row


# Questions and norms --------------------------------------------------------------------------------------------------


def equal(a: Any, b: Any) -> Any:
    (a, b), (c, d) = both(cartesian(a)), [0.0 if part is None else part for part in cartesian(b)]
    return torch.logical_and(a == c, b == d)


def norm(z: Cartesian, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return aten.linalg_vector_norm.default(length(z), order, dims, keepdim)


def variance(z: Cartesian, *dims: Any, **options: Any) -> Tensor:
    re, im = both(z)
    return re.var(*dims, **options) + im.var(*dims, **options)


FUNCTIONS: dict[Any, CartesianRow] = {
    **ARITHMETIC,
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), quotient),
    aten.reciprocal.default: lambda z: quotient(1.0, z),
    aten.square.default: lambda z: multiply(z, z),
    aten.pow.Tensor_Scalar: power,
    aten.sqrt.default: sqrt,
    aten.rsqrt.default: lambda z: quotient(1.0, sqrt(z)),
    aten.abs.default: length,
    aten.angle.default: angle,
    aten.sgn.default: direction,
    aten.log.default: log,
    aten.tanh.default: tanh,
    aten.sigmoid.default: sigmoid,
    aten.sin.default: circular(torch.sin, torch.cos, 1),
    aten.cos.default: circular(torch.cos, torch.sin, -1),
    aten.sinh.default: hyperbolic(torch.sinh, torch.cosh),
    aten.cosh.default: hyperbolic(torch.cosh, torch.sinh),
    aten.linalg_vector_norm.default: norm,
    aten.var.correction: variance,
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), equal),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), lambda a, b: torch.logical_not(equal(a, b))),
    aten._fft_r2c.default: fourier.of_real,
    aten._fft_c2c.default: fourier.of_complex,
    aten._fft_c2r.default: fourier.to_real,
    aten.isnan.default: lambda z: torch.logical_or(*map(torch.isnan, both(z))),
}
