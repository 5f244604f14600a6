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
    small, large = x(H).detach() * 0.01, x(H).detach()
    large[::2], large[1::2] = 0.01 * large[::2], large[1::2] + 3  # each other step decides otherwise
    told = [check(example(limited, h() * 0.01, xs), tolerance=1e-12) for xs in [small, large, small, *[large] * 9]]
    assert [decision.strategy for decision in told[:3]] == ["sequential", "pytorch", "sequential"]
    assert "decides otherwise in this call" in told[1].reason
    assert check(example(limited, h() * 0.01, small), tolerance=1e-12).strategy == "pytorch"  # as too many calls were


def begins(state: Any, x: Tensor) -> Any:
    """As the sLSTM of xLSTM tells its first step, in which the normaliser is zero."""
    c, n, m = state
    i, f = x + 0.5 * c, x - c
    m_new = i if torch.all(n == 0.0) else torch.maximum(f + m, i)
    i, f = torch.exp(i - m_new), torch.exp(f + m - m_new)
    c, n = f * c + i * torch.tanh(x), f * n + i
    return (c, n, m_new), c / n


def starts_anew(h: Tensor, x: Tensor) -> Any:
    if not h.any():
        h = x.sigmoid()
    return torch.tanh(h + x), h


def starts_anew_without_numbers(h: Tensor, x: Tensor) -> Any:
    assert torch.isfinite(h).all()
    return starts_anew(h, x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", [begins, starts_anew, starts_anew_without_numbers])
def test_a_first_step_that_decides_otherwise_is_apart(cell: Any, reverse: bool) -> None:
    torch.manual_seed(0)
    zero = torch.zeros_like(h()).requires_grad_()
    carry = (zero, torch.zeros_like(zero), torch.zeros_like(zero)) if cell is begins else zero
    for _ in range(5):
        decision = check(example(cell, carry, x(H)), tolerance=1e-12, reverse=reverse)
        assert decision.strategy == "sequential"
        assert "its first step, which may decide otherwise, is PyTorch's" in decision.reason


def asks_for_all_and_for_any(h: Tensor, x: Tensor) -> Any:
    """Once one of them is otherwise, it does not tell the other."""
    zero = h == 0
    if zero.all():
        h = x.sigmoid()
    if zero.any():
        h = h + 1
    return torch.where(x > 0.5, 0.0, torch.tanh(h + x)), h


def test_all_and_any_of_one_value() -> None:
    torch.manual_seed(0)
    for _ in range(5):
        check(example(asks_for_all_and_for_any, torch.zeros_like(h()).requires_grad_(), x(H)), tolerance=1e-12)
