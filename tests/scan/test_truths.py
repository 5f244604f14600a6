"""Cells that read truth values: they decide as an assert that holds, and calls in which they do not are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

import bppsa
from tests.scan.support import check
from tests.scan.zoo import H, example, h, x

SCALE = torch.linspace(-1, 1, H, dtype=torch.float64).requires_grad_()


def checked(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    assert torch.isfinite(h).all()
    assert not torch.isnan(h).any()
    return h, h


def density(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    return h, Normal(h, SCALE.exp()).log_prob(x).sum(-1)


def choice(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    given = Categorical(logits=h)
    return h, (given.entropy(), given.log_prob(x.argmax(-1)))


def limited(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    if (h > 0.9).any():
        h = h / 2
    return h, h


def checked_without_gradient(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h + x)
    with torch.no_grad():
        bad = h.isnan().any()
        largest = h.mean(0).abs()  # of the batch, and read by nothing
    if bad:
        raise ValueError(f"no number: {largest}")
    return h, h


@pytest.mark.parametrize("cell", [checked, checked_without_gradient, density, choice])
def test_what_holds_is_no_obstacle(cell: Any) -> None:
    torch.manual_seed(0)
    assert check(example(cell, h(), x(H)), tolerance=1e-12).strategy == "sequential"


def test_an_error_is_raised_where_pytorch_raises_it() -> None:
    torch.manual_seed(0)
    xs = x(H).detach()
    xs[3, 1, 2] = torch.nan
    with pytest.raises(AssertionError):
        bppsa.scan(checked, h(), xs)
    assert check(example(checked, h(), x(H)), tolerance=1e-12).strategy == "sequential"


def test_a_call_that_decides_otherwise_is_pytorchs() -> None:
    torch.manual_seed(0)
    small, large = x(H).detach() * 0.01, x(H).detach() + 3
    told = [check(example(limited, h() * 0.01, xs), tolerance=1e-12) for xs in [small, large, small, *[large] * 9]]
    assert [decision.strategy for decision in told[:3]] == ["sequential", "pytorch", "sequential"]
    assert "decides otherwise in this call" in told[1].reason
    assert check(example(limited, h() * 0.01, small), tolerance=1e-12).strategy == "pytorch"  # as too many calls were
