"""Complex numbers as real and imaginary parts, and the arithmetic of them.

A part that is zero wherever the value comes from a real one is None: nothing is multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

CartesianPart = Any  # a tensor, a number, or None


class Cartesian(NamedTuple):
    """re + i im."""

    re: CartesianPart
    im: CartesianPart = None


def cartesian(value: Any) -> Cartesian:
    """The parts of a complex value or number, or of a real one."""
    if isinstance(value, Cartesian):
        return value
    if isinstance(value, complex):
        return Cartesian(value.real or None, value.imag or None)
    return Cartesian(value)


# Of parts -----------------------------------------------------------------------------------------------------------


def plus(a: CartesianPart, b: CartesianPart) -> CartesianPart:
    return b if a is None else a if b is None else a + b


def minus(a: CartesianPart, b: CartesianPart) -> CartesianPart:
    return a if b is None else -b if a is None else a - b


def times(a: CartesianPart, b: CartesianPart) -> CartesianPart:
    return None if a is None or b is None else a * b


def over(a: CartesianPart, b: CartesianPart) -> CartesianPart:
    return None if a is None else a / b


def each(f: Callable[[Any], CartesianPart], z: Cartesian) -> Cartesian:
    """f of the real part and of the imaginary one: of an op that is linear."""
    return Cartesian(*(None if part is None else f(part) for part in z))


# Of complex numbers -------------------------------------------------------------------------------------------------


def add(a: Cartesian, b: Cartesian) -> Cartesian:
    return Cartesian(plus(a.re, b.re), plus(a.im, b.im))


def subtract(a: Cartesian, b: Cartesian) -> Cartesian:
    return Cartesian(minus(a.re, b.re), minus(a.im, b.im))


def multiply(a: Cartesian, b: Cartesian, product: Callable[[Any, Any], CartesianPart] = times) -> Cartesian:
    """product: of real numbers, or of real matrices."""

    def known(left: CartesianPart, right: CartesianPart) -> CartesianPart:
        return None if left is None or right is None else product(left, right)

    return Cartesian(
        minus(known(a.re, b.re), known(a.im, b.im)),
        plus(known(a.re, b.im), known(a.im, b.re)),
    )


def conjugate(z: Cartesian) -> Cartesian:
    return Cartesian(z.re, None if z.im is None else -z.im)
