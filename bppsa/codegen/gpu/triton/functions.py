"""Functions that printed Triton calls; this module alone of codegen needs triton to be imported.

They are made of Triton's own primitives, without a device library, so that its interpreter runs them too. A NaN stays
one in all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exponential(x: tl.tensor) -> tl.tensor:
    """e^x within a few ulp: the hardware's own exponential loses as many bits as x has before the point."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    x = tl.where(x < -104.0, -104.0, tl.where(x > 89.0, 89.0, x))  # what exp takes to 0 and to infinity
    n = tl.floor(x * 1.4426950408889634)
    rest = (x - n * 0.693359375) + n * 2.12194440e-4  # ln 2 in two parts: n times the first, of few bits, is exact
    return tl.exp2(n) * tl.exp2(rest * 1.4426950408889634)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    return 1.0 / (1.0 + exponential(-x))


@triton.jit
def hyperbolic_tangent(x: tl.tensor) -> tl.tensor:
    """Near 0, where 1 - 2 / (exp(2x) + 1) cancels, the rational approximation of Cephes' tanh."""
    z = x * x
    top = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    bottom = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
    far = 1.0 - 2.0 / (exponential(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, x * (1.0 + z * (top / bottom)), tl.where(x < 0.0, -far, far))


@triton.jit
def error_function(x: tl.tensor) -> tl.tensor:
    """W. J. Cody's rational approximations (1969): x R(x^2) near 0, else 1 - e^(-x^2) R(|x|)."""
    y = tl.where(tl.abs(x) > 6.0, 6.0, tl.abs(x))  # beyond, it is 1 to the last bit
    z = y * y
    top = ((1.85777706184603153e-1 * z + 3.16112374387056560) * z + 1.13864154151050156e2) * z
    top = (top + 3.77485237685302021e2) * z + 3.20937758913846947e3
    bottom = ((z + 2.36012909523441209e1) * z + 2.44024637934444173e2) * z + 1.28261652607737228e3
    bottom = bottom * z + 2.84423683343917062e3
    far_top = ((2.15311535474403846e-8 * y + 5.64188496988670089e-1) * y + 8.88314979438837594) * y
    far_top = ((far_top + 6.61191906371416295e1) * y + 2.98635138197400131e2) * y + 8.81952221241769090e2
    far_top = ((far_top * y + 1.71204761263407058e3) * y + 2.05107837782607147e3) * y + 1.23033935479799725e3
    far_bottom = ((y + 1.57449261107098347e1) * y + 1.17693950891312499e2) * y + 5.37181101862009858e2
    far_bottom = ((far_bottom * y + 1.62138957456669019e3) * y + 3.29079923573345963e3) * y
    far_bottom = ((far_bottom + 4.36261909014324716e3) * y + 3.43936767414372164e3) * y + 1.23033935480374942e3
    far = 1.0 - exponential(-z) * (far_top / far_bottom)
    return tl.where(y < 0.5, x * (top / bottom), tl.where(x < 0.0, -far, far))


@triton.jit
def sine(x: tl.tensor, quadrant: tl.constexpr) -> tl.tensor:
    """sin, or cos for quadrant 1: Cody and Waite's reduction and Cephes' polynomials, far away the library's."""
    far = tl.sin(x) if quadrant == 0 else tl.cos(x)
    if x.dtype == tl.float64:
        return far
    n = tl.floor(x * 0.6366197723675814 + 0.5)
    r = ((x - n * 1.5703125) - n * 4.837512969970703125e-4) - n * 7.549789948768648e-8
    z = r * r
    s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r
    c = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0
    at = n.to(tl.int32) + quadrant
    y = tl.where((at & 1) != 0, c, tl.where(x == 0.0, x, s))
    return tl.where(tl.abs(x) <= 30000.0, tl.where((at & 2) != 0, -y, y), far)


@triton.jit
def arc_tangent(x: tl.tensor) -> tl.tensor:
    """Cephes' atan: around 0, 1 and infinity."""
    size = tl.abs(x)
    far = size > 2.414213562373095
    middle = size > 0.66
    y = tl.where(far, -1.0 / size, tl.where(middle, (size - 1.0) / (size + 1.0), size))
    z = y * y
    top = (-8.750608600031904122785e-1 * z - 1.615753718733365076637e1) * z - 7.500855792314704667340e1
    top = (top * z - 1.228866684490136173410e2) * z - 6.485021904942025371773e1
    bottom = ((z + 2.485846490142306297962e1) * z + 1.650270098316988542046e2) * z + 4.328810604912902668951e2
    bottom = (bottom * z + 4.853903996359136964868e2) * z + 1.945506571482613964425e2
    near = y + y * z * (top / bottom)
    angle = tl.where(far, 1.57079632679489661923 + near, tl.where(middle, 0.78539816339744830962 + near, near))
    return tl.where(x < 0.0, -angle, tl.where(x == 0.0, x, angle))


@triton.jit
def remainder_of(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """fmod, exact: multiples of b are taken off from the largest on, each of so few bits that no product is rounded,
    and a little too small."""
    rest = tl.abs(a).to(tl.float64)
    unit = tl.abs(b).to(tl.float64)
    for _ in range(13 if a.dtype == tl.float32 else 100):
        many = tl.floor(rest / unit * (1.0 - 4.76837158203125e-07))
        many = (many.to(tl.int64, bitcast=True) & -134217728).to(tl.float64, bitcast=True)  # all but 27 bits
        rest = tl.where((many > 0.0) & (many < float("inf")), tl.fma(-many, unit, rest), rest)
    rest = tl.where(rest >= unit, rest - unit, rest).to(a.dtype)
    plain = (tl.abs(a) < float("inf")) & (unit > 0.0) & (b == b)
    result = tl.where(plain, tl.where(unit < float("inf"), rest, tl.abs(a)), float("nan"))
    return tl.where((a < 0.0) | (1.0 / a < 0.0), -result, result)


@triton.jit
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def largest(x: tl.tensor, axis: tl.constexpr = 1) -> tl.tensor:
    """Along an axis, which becomes 1."""
    none = tl.max((x != x).to(tl.int32), axis, keep_dims=True)
    return tl.where(none > 0, float("nan"), tl.max(x, axis, keep_dims=True))


@triton.jit
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def exponent(x: tl.tensor) -> tl.tensor:
    """floor(log2 |x|), as far as its negative is a normal number's; 0 where x is subnormal or not finite."""
    if x.dtype == tl.float64:
        biased = ((x.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32)
        n = tl.minimum(biased - 1023, 1022)
        special = (biased == 0) | (biased == 2047)
    else:
        biased = (x.to(tl.int32, bitcast=True) >> 23) & 255
        n = tl.minimum(biased - 127, 126)
        special = (biased == 0) | (biased == 255)
    return tl.where(special, 0, n).to(x.dtype)


@triton.jit
def times_power_of_two(x: tl.tensor, n: tl.tensor) -> tl.tensor:
    if x.dtype == tl.float64:
        return x * ((n.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return x * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def moved(into: tl.tensor, tile: tl.tensor, low: tl.constexpr, high: tl.constexpr, shift: tl.constexpr) -> tl.tensor:
    """`into` [R, P] with columns [low, high) replaced by `tile`'s [low + shift, high + shift)."""
    column = tl.arange(0, into.shape[1])[None, :]
    value = tile
    if tile.shape[1] > 1:
        index = tl.minimum(tl.maximum(column + shift, 0), tile.shape[1] - 1)
        value = tl.gather(tile, tl.broadcast_to(index, [into.shape[0], into.shape[1]]), 1)
    return tl.where((column >= low) & (column < high), value, into)
