"""Bits of whole numbers and truth values, and quotients, as products, quotients and remainders by constants.

Whole numbers are real ones in a kernel. Remainders have the sign of the divisor, so that negative numbers have the bits
of their two's complement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
MOST_BITS = 16


def whole(x: Any) -> bool:
    """Whether it is of whole numbers, of a width that the sweep's numbers do not leave, so that none begins anew."""
    return isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64)


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """The first bit of each run of ones, and how many there are."""
    at = 0
    while mask >> at:
        count = 0
        while mask >> (at + count) & 1:
            count += 1
        if count:
            yield at, count
        at += max(count, 1)


def masked(x: Tensor, mask: int) -> Tensor:
    parts = [(x // 2**at if at else x) % 2**count * 2**at for at, count in runs(mask)]
    return sum(parts[1:], parts[0]) if parts else torch.zeros_like(x)


def with_constant(combine: Callable[[Tensor, int], Tensor], most: int = 2**MOST_BITS - 1) -> Callable[..., Tensor]:
    def spelled(x: Any, constant: Any) -> Tensor:
        known = whole(x) and isinstance(constant, int) and 0 <= constant <= most
        return combine(x, constant) if known else NotImplemented

    return spelled


def of_truths(
    combine: Callable[[Tensor, int], Tensor], with_truth: Callable[[Tensor, bool], Tensor]
) -> Callable[..., Tensor]:
    def spelled(x: Any, constant: Any) -> Tensor:
        truths = isinstance(x, Tensor) and x.dtype is torch.bool and isinstance(constant, bool)
        return with_truth(x, constant) if truths else with_constant(combine)(x, constant)

    return spelled


def divide(x: Any, divisor: Any, *, rounding_mode: str | None = None) -> Tensor:
    if not (whole(x) and isinstance(divisor, int) and divisor > 0 and rounding_mode):
        return NotImplemented
    quotient = x // divisor
    return quotient if rounding_mode == "floor" else torch.where(x < 0, -(-x // divisor), quotient)


to_left = with_constant(lambda x, by: x * 2**by, MOST_BITS)
to_right = with_constant(lambda x, by: x // 2**by, MOST_BITS)

OF_BITS: dict[Any, Callable[..., Tensor]] = {
    aten.bitwise_and.Scalar: of_truths(masked, lambda x, truth: x if truth else torch.zeros_like(x)),
    aten.bitwise_or.Scalar: of_truths(
        lambda x, mask: x - masked(x, mask) + mask, lambda x, truth: torch.ones_like(x) if truth else x
    ),
    aten.bitwise_xor.Scalar: of_truths(
        lambda x, mask: x - masked(x, mask) * 2 + mask, lambda x, truth: torch.logical_not(x) if truth else x
    ),
    **dict.fromkeys((aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar), to_left),
    **dict.fromkeys((aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar), to_right),
    **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode), divide),
}
