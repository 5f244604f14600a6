"""Pairs (J^T, b), affine maps of a cotangent, and how two of them combine (BPPSA section 3.1, operator of equation 4).

A product of many Jacobians leaves the range of floating point where back-propagation does not: it only ever forms a
product with one vector. So every row of a matrix and of a vector has a power of two beside it, and a combination aligns
them: what back-propagation represents, the scan represents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

REAL = torch.float64  # of what scans compute with, whatever the recurrence does
ZERO = -(1 << 20)  # the exponent of a row of zeros: below that of any other
LARGEST = 1022  # a power of two that float64 has, as has its reciprocal


@dataclass(frozen=True)
class ScaledRows:
    """values * 2 ** exponents: values float64 [..., m, n], exponents int32 [..., m], one a row."""

    values: Tensor
    exponents: Tensor

    @staticmethod
    def of(values: Tensor, exponents: Tensor | int = 0) -> ScaledRows:
        """The rows with the largest value of each brought into [1/2, 1), where it is finite."""
        largest = values.abs().amax(-1)
        ordinary = largest.isfinite() & (largest > 0)
        shift = torch.where(ordinary, torch.frexp(largest).exponent, 0)
        exponents = torch.where(largest == 0, ZERO, shift + exponents)
        return ScaledRows(scaled(values, -shift.unsqueeze(-1)), exponents.to(torch.int32))

    def __getitem__(self, index: Tensor | int) -> ScaledRows:
        return ScaledRows(self.values[index], self.exponents[index])

    def put(self, index: Tensor, rows: ScaledRows) -> None:
        self.values[index], self.exponents[index] = rows.values, rows.exponents

    def plain(self) -> Tensor:
        return scaled(self.values, self.exponents.unsqueeze(-1))


@dataclass(frozen=True)
class Pair:
    """g -> matrix @ g + vector; matrix [..., m, m], vector [..., m, 1].

    live: bool [..., m], or None where all are. A row that is not live is cut off from g: a reset selects, it does not
    multiply by zero, so that NaN and Inf do not cross it.
    """

    matrix: ScaledRows
    vector: ScaledRows
    live: Tensor | None = None

    def __getitem__(self, index: Tensor | int) -> Pair:
        return Pair(self.matrix[index], self.vector[index], None if self.live is None else self.live[index])

    def put(self, index: Tensor, pair: Pair) -> None:
        self.matrix.put(index, pair.matrix)
        self.vector.put(index, pair.vector)
        if self.live is not None and pair.live is not None:
            self.live[index] = pair.live

    def map(self, change: Callable[[Tensor], Tensor]) -> Pair:
        """Every tensor changed in its leading dimensions."""
        parts = (self.matrix, self.vector)
        matrix, vector = (ScaledRows(change(rows.values), change(rows.exponents)) for rows in parts)
        return Pair(matrix, vector, None if self.live is None else change(self.live))


def scaled(values: Tensor, exponents: Tensor) -> Tensor:
    """values * 2 ** exponents, in two factors: one alone may be out of range where the result is not."""
    half = exponents.clamp(-2 * LARGEST, 2 * LARGEST).div(2, rounding_mode="floor")
    rest = (exponents - half).clamp(-LARGEST, LARGEST)
    return values * torch.exp2(half.to(values.dtype)) * torch.exp2(rest.to(values.dtype))


def product(a: ScaledRows, b: ScaledRows) -> ScaledRows:
    """a [..., m, k] times b [..., k, n]. Each row of a takes over the exponents of the rows of b that it meets."""
    sizes = torch.where((a.values == 0) | ~a.values.isfinite(), 0, torch.frexp(a.values).exponent)
    reach = torch.where(a.values == 0, ZERO, sizes + b.exponents.unsqueeze(-2))
    shift = reach.amax(-1, keepdim=True)
    left = scaled(a.values, b.exponents.unsqueeze(-2) - shift)
    values = left * b.values if left.shape[-1] == 1 else left @ b.values
    return ScaledRows.of(values, a.exponents + shift.squeeze(-1))


def total(a: ScaledRows, b: ScaledRows) -> ScaledRows:
    shift = torch.maximum(a.exponents, b.exponents)
    parts = [scaled(rows.values, (rows.exponents - shift).unsqueeze(-1)) for rows in (a, b)]
    return ScaledRows.of(parts[0] + parts[1], shift)


def apply(pair: Pair, g: ScaledRows) -> ScaledRows:
    """matrix @ g + vector; g [..., m, 1]"""
    return total(selected(product(pair.matrix, g), pair.live), pair.vector)


def compose(a: Pair, b: Pair) -> Pair:
    """First b, then a: `a` is the pair of earlier steps, nearer to the input."""
    matrix = selected(product(a.matrix, b.matrix), a.live)
    live = None if a.live is None or b.live is None else a.live & b.live.any(-1, keepdim=True)
    return Pair(matrix, apply(a, b.vector), live)


def selected(rows: ScaledRows, live: Tensor | None) -> ScaledRows:
    if live is None:
        return rows
    return ScaledRows(torch.where(live.unsqueeze(-1), rows.values, 0.0), torch.where(live, rows.exponents, ZERO))
