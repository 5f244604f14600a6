"""Complex numbers as real and imaginary parts, and the arithmetic of them.

A part that is zero wherever the value comes from a real one is None: nothing is multiplied by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Part = Any  # a tensor, a number, or None


class Cartesian(NamedTuple):
    """re + i im."""

    re: Part
    im: Part = None


def cartesian(value: Any) -> Cartesian:
    """Of a complex value or number, or of a real one."""
    if isinstance(value, Cartesian):
        return value
    if isinstance(value, complex):
        return Cartesian(value.real or None, value.imag or None)
    return Cartesian(value)


# Of parts -----------------------------------------------------------------------------------------------------------


def plus(a: Part, b: Part) -> Part:
    return b if a is None else a if b is None else a + b


def minus(a: Part, b: Part) -> Part:
    return a if b is None else -b if a is None else a - b


def times(a: Part, b: Part) -> Part:
    return None if a is None or b is None else a * b


def over(a: Part, b: Part) -> Part:
    return None if a is None else a / b


def each(f: Callable[[Any], Part], z: Cartesian) -> Cartesian:
    """f of the real part and of the imaginary one: of an op that is linear."""
    return Cartesian(*(None if part is None else f(part) for part in z))


# Of complex numbers -------------------------------------------------------------------------------------------------


def add(a: Cartesian, b: Cartesian) -> Cartesian:
    return Cartesian(plus(a.re, b.re), plus(a.im, b.im))


def subtract(a: Cartesian, b: Cartesian) -> Cartesian:
    return Cartesian(minus(a.re, b.re), minus(a.im, b.im))


def multiply(a: Cartesian, b: Cartesian, product: Callable[[Any, Any], Part] = times) -> Cartesian:
    """product: of real numbers, or of real matrices."""

    def known(left: Part, right: Part) -> Part:
        return None if left is None or right is None else product(left, right)

    return Cartesian(
        minus(known(a.re, b.re), known(a.im, b.im)),
        plus(known(a.re, b.im), known(a.im, b.re)),
    )


def conjugate(z: Cartesian) -> Cartesian:
    return Cartesian(z.re, None if z.im is None else -z.im)
