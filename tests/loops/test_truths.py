"""Loops whose steps read truth values: where all decide alike they are a scan, and PyTorch's in calls that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

from tests.loops.beside import Pair
from tests.loops.cells import Cell, x

LONG = 16


class Deciding(Cell):
    """A cell whose steps decide by `use`, which gives the next state."""

    kind = nn.RNNCell

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor, limit: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.use(self.cell(x[:, t], h), limit)
            out.append(h)
        return torch.stack(out, 1)


def asserted(h: Tensor, limit: Tensor) -> Tensor:
    assert torch.isfinite(h).all()
    assert not torch.isnan(h).any()
    assert h.abs().max() <= 1
    return h


def policy(h: Tensor, limit: Tensor) -> Tensor:
    choice = Categorical(logits=h)
    return h + 0.1 * torch.stack([choice.log_prob(h.argmax(-1)), choice.entropy()], 1).sum(1, keepdim=True)


def density(h: Tensor, limit: Tensor) -> Tensor:
    return h + 0.01 * Normal(h, functional.softplus(h) + 0.1).log_prob(limit)


def limited(h: Tensor, limit: Tensor) -> Tensor:
    return halved(functional.dropout(h, 0.1), limit)


def halved(h: Tensor, limit: Tensor) -> Tensor:
    if (h > limit).any():
        h = h / 2
    return h


def guarded(h: Tensor, limit: Tensor) -> Tensor:
    if not (h < limit).all():
        raise FloatingPointError("too large")
    return h


def limit(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("use", [asserted, policy, density, limited, guarded])
def test_steps_that_decide_alike_are_a_scan(use: Any) -> None:
    torch.manual_seed(0)
    assert Pair(Deciding(use)).strategies(x(LONG), limit(9.0)) == ["sequential"]


def test_a_call_that_decides_otherwise_is_pytorchs() -> None:
    """Also its random numbers are as if no scan had been tried."""
    torch.manual_seed(0)
    pair = Pair(Deciding(limited))
    told = [pair.call(x(LONG), limit(value), seed=i)[-1] for i, value in enumerate([9.0, 9.0, 0.1, 9.0])]
    assert [decision.strategy for decision in told] == ["sequential", "sequential", "pytorch", "sequential"]
    assert "decides otherwise in this call" in told[2].reason


def test_calls_that_keep_deciding_otherwise_are_left_alone() -> None:
    torch.manual_seed(0)
    pair = Pair(Deciding(limited))
    told = [pair.call(x(LONG), limit(value), seed=i)[-1] for i, value in enumerate([9.0, 0.1] * 10)]
    assert [decision.strategy for decision in told[:2]] == ["sequential", "pytorch"]
    assert {decision.strategy for decision in told[-4:]} == {"pytorch"}


def test_an_error_is_raised_where_pytorch_raises_it() -> None:
    torch.manual_seed(0)
    pair = Pair(Deciding(guarded))
    pair.call(x(LONG), limit(9.0))
    pair.call(x(LONG), limit(9.0))
    with pytest.raises(FloatingPointError, match="too large"):
        pair.fast(x(LONG), limit(0.0))


def test_steps_that_decide_in_two_ways_are_pytorchs() -> None:
    torch.manual_seed(0)
    pair = Pair(Deciding(halved))
    given = x(LONG)
    middle = pair.plain(given, limit(9.0)).detach().amax((0, 2)).median()
    assert [decision.strategy for decision in pair.call(given, middle)] == ["pytorch"]
    assert "if (h > limit).any():" in pair.decisions()[0].reason


def test_a_call_that_decides_otherwise_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("BPPSA_CHECK", "1")
    pair = Pair(Deciding(limited))
    for seed, value in enumerate([9.0, 9.0, 0.1, 9.0]):
        pair.call(x(LONG), limit(value), seed=seed)


class Stabilised(Cell):
    """As the cell of xLSTM is published: the first step, before which the normaliser is zero, takes another branch."""

    def forward(self, x: Tensor) -> Tensor:
        n = largest = h = self.start(x)
        out = []
        for t in range(x.shape[1]):
            gate = self.cell(x[:, t], h)
            new = gate if torch.all(n == 0.0) else torch.max(gate, largest - 0.1)
            n, h = torch.exp(largest - new) * n + torch.exp(gate - new), torch.tanh(gate) / (1 + n.abs())
            largest = new
            out.append(h)
        return torch.stack(out, 1)


def test_the_first_step_may_decide_otherwise() -> None:
    torch.manual_seed(0)
    assert Pair(Stabilised()).strategies(x(LONG)) == ["sequential"]
