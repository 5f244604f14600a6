"""nn.LSTM and nn.GRU called for one step of a loop, as policies that are reset within their sequences do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import B, H, N, T, x


class OneStep(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.layer = kind(N, H, **options)

    def start(self, x: Tensor) -> Any:
        h = x.new_zeros(self.layer.num_layers, len(x), H)
        return (h, h) if isinstance(self.layer, nn.LSTM) else h

    def forward(self, x: Tensor) -> Any:
        state, out = self.start(x), []
        for step in x.unbind(1):
            y, state = self.layer(step.unsqueeze(0), state)
            out.append(y)
        return torch.cat(out), state


class Resets(OneStep):
    """Of the state as the layer hands it on, with its dim of layers."""

    def forward(self, x: Tensor, start: Tensor) -> Any:
        state, out = self.start(x), []
        for step, begins in zip(x.unbind(1), start.unbind(1), strict=True):
            keep = (1.0 - begins).view(1, len(x), 1)
            state = tuple(keep * each for each in state) if isinstance(state, tuple) else keep * state
            y, state = self.layer(step.unsqueeze(dim=0), state)
            out += [y]
        return torch.cat(out).transpose(0, 1).flatten(0, 1), state


def starts(rows: int = B, steps: int = T) -> Tensor:
    return (torch.rand(rows, steps, dtype=torch.float64) < 0.2).double()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("rows", [B, 1])
def test_resets_between_steps(kind: type[nn.RNNBase], rows: int) -> None:
    pair = Pair(Resets(kind))
    for steps in (T, T + 3):
        assert pair.strategies(x(steps)[:rows].detach().requires_grad_(), starts(rows, steps)) == ["sequential"]


def trained(model: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    model.zero_grad()
    y, state = model(*given)
    (y.square().sum() + sum((i + 1) * part.sin().sum() for i, part in enumerate(state))).backward()
    return [y, *state, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"proj_size": 2}], ids=str)
@pytest.mark.parametrize("cls", [OneStep, Resets])
def test_in_float32(cls: type[OneStep], options: dict[str, Any]) -> None:
    """PyTorch has one op for such a step there."""
    torch.manual_seed(0)
    model = cls(**options)
    fast = bppsa.compile(copy.deepcopy(model))
    if "proj_size" in options:  # a carry that is narrower than the other one
        model.start = fast.start = lambda x: (x.new_zeros(1, len(x), 2), x.new_zeros(1, len(x), H))
    for _ in range(3):
        given = (x().float().detach(), starts().float())[: 1 + (cls is Resets)]
        for wanted, found in zip(trained(model, given), trained(fast, given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    decisions = [d.strategy for d in bppsa.report(fast).decisions if d.kind == "loop"]
    assert decisions == ["sequential"], str(bppsa.report(fast))


def test_a_layer_called_for_many_steps_within_the_call() -> None:
    """It stays the one op that it is."""

    class Encodes(OneStep):
        def forward(self, x: Tensor) -> Any:
            out, state = self.layer(x.transpose(0, 1))
            for step in x.unbind(1):
                y, state = self.layer(step.unsqueeze(0), state)
            return out, y, state

    torch.manual_seed(0)
    model = Encodes()
    fast, given = bppsa.compile(model), x().float().detach()
    for _ in range(3):
        for expected, found in zip(model(given), fast(given), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert "sequential" in [d.strategy for d in bppsa.report(fast).decisions if d.kind == "loop"]


class Heads(nn.Module):
    """One row, and a value for each head that is given its dim of rows in each step."""

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(1, 3, H), []
        for step in x:
            h = torch.tanh(h.sum(2, keepdim=True) + step.unsqueeze(0)) * 0.9
            out.append(h)
        return torch.cat(out)


def test_a_first_dim_that_is_the_batch() -> None:
    given = torch.randn(T, 3, H, dtype=torch.float64, requires_grad=True)
    assert Pair(Heads()).strategies(given) == ["sequential"]
