"""Which way of multiplying on tensor cores keeps float32 accuracy over a long product of Jacobians."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.triton.precision import SPLITS, product, rounded

STEPS, H = 64, 32


def jacobians() -> list[Tensor]:
    """Of a recurrence with orthogonal weights and gates near 1, so that the product neither grows nor fades."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(STEPS):
        orthogonal, _ = torch.linalg.qr(torch.randn(H, H, generator=generator, dtype=torch.float64))
        gates = 1 - 0.05 * torch.rand(H, generator=generator, dtype=torch.float64)
        found.append((gates[:, None] * orthogonal).float())
    return found


def error(precision: str | None) -> float:
    """Relative, in the norm."""
    multiply = torch.matmul if precision is None else functools.partial(product, precision=precision)
    factors = jacobians()
    got, exact = factors[0], factors[0].double()
    for factor in factors[1:]:
        got, exact = multiply(factor, got), factor.double() @ exact
    return float((got - exact).norm() / exact.norm())


@pytest.mark.parametrize("precision", ["tf32x3", "bf16x6"])
def test_splits_are_as_exact_as_float32(precision: str) -> None:
    assert error(precision) < 2 * error(None) < 1e-5


def test_one_product_of_tf32_is_not() -> None:
    assert error("tf32") > 100 * error(None)
    assert error("bf16") > error("tf32")


def test_rounding() -> None:
    x = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -(1 + 2**-11), 0.0, torch.inf])
    assert rounded(x, 10).tolist() == [1 + 2**-10, 1 + 2**-10, 1.0, -(1 + 2**-10), 0.0, torch.inf]
    assert rounded(torch.tensor([torch.nan]), 10).isnan().all()
    for split in SPLITS.values():
        assert split.order < split.terms
