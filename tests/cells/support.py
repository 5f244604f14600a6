"""A cell of the literature against a Python loop: values and all gradients in float64, and that it was fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.scan.support import check, check_inference
from tests.scan.zoo import B, Example, H, I, T, example, h, random, x

Cell = Callable[[Any, Any], tuple[Any, Any]]
Table = list[tuple[str, Cell]]

__all__ = ["B", "Cell", "H", "I", "T", "Table", "fuses", "h", "plain", "random", "squashed", "x"]


def squashed(f: Callable[[Tensor, Tensor], Tensor]) -> Cell:
    """h <- tanh(f(h, x)), which is also the output."""

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(f(h, x))
        return h, h

    return cell


def plain(f: Callable[[Tensor, Tensor], Tensor]) -> Cell:
    return lambda h, x: ((n := f(h, x)), n)


def fuses(cell: Cell, carry: Any, xs: Any, *parameters: Tensor, tolerance: float = 1e-9, absent: bool = False) -> None:
    """absent: a gradient may be None where PyTorch has zeros."""
    given: Example = example(cell, carry, xs, *parameters)
    decision = check(given, tolerance=tolerance, absent=absent)
    assert decision.strategy == "sequential", decision.reason
    check_inference(given, tolerance=tolerance)
