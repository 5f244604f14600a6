"""Loops in which rounding grows: float32 differs from PyTorch's by more than rounding, and float64 decides."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.loops.scans.fuse import Fused

H, B = 32, 8


class Reservoir(nn.Module):
    """Chaos: an error is some 20 times as large every 40 steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.recurrent = steps, nn.Linear(H, H)
        nn.init.normal_(self.recurrent.weight, std=2 / H**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x), []
        for _ in range(self.steps):
            h = torch.tanh(self.recurrent(h) + x)
            out.append(h)
        return torch.stack(out)


class Choosing(Reservoir):
    """What it chooses is what it reads next."""

    def forward(self, x: Tensor) -> Any:
        h, choice, out = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.long), []
        for _ in range(self.steps):
            h = torch.tanh(self.recurrent(h) + x + nn.functional.one_hot(choice, H).to(x.dtype))
            choice = h.argmax(1)
            out.append(choice)
        return h, torch.stack(out)


def decisions(model: nn.Module, x: Tensor) -> Any:
    fast = bppsa.compile(copy.deepcopy(model))
    for _ in range(2):
        fast(x)
    return [decision for decision in bppsa.report(fast).decisions if decision.kind == "loop"]


@pytest.mark.parametrize("kind", [Reservoir, Choosing])
def test_float64_decides(kind: type[Reservoir]) -> None:
    torch.manual_seed(0)
    (decision,) = decisions(kind(90), 0.1 * torch.randn(B, H))
    assert decision.strategy == "sequential"
    assert "are in float64" in decision.reason


def test_a_call_that_float64_decided_is_compared_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("BPPSA_CHECK", "1")
    model, x = Reservoir(90), 0.1 * torch.randn(B, H)
    fast = bppsa.compile(copy.deepcopy(model))
    for _ in range(3):
        assert torch.equal(fast(x), model(x))


def test_where_float64_differs_too_pytorch_runs() -> None:
    torch.manual_seed(0)
    (decision,) = decisions(Reservoir(400), 0.1 * torch.randn(B, H))
    assert decision.strategy == "pytorch"
    assert "in float64 too" in decision.reason
    assert "test_in_double.py:" in decision.path


@pytest.mark.parametrize("error", [1.001, 1.0001])
def test_a_scan_that_computes_something_else_is_found_in_float64(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fused.__call__
    monkeypatch.setattr(Fused, "__call__", lambda *given: [output * error for output in run(*given)])
    torch.manual_seed(0)
    (decision,) = decisions(Reservoir(90), 0.1 * torch.randn(B, H))
    assert decision.strategy == "pytorch"
