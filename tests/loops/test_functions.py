"""`bppsa.loop`: functions and methods with loops over time; and BPPSA_CHECK=1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.errors import ArgumentError, GradientError
from bppsa.frontend.loops.scans.fuse import Fused
from tests.loops.beside import Pair, assert_alike
from tests.loops.cells import B, Cell, H, N, T, x
from tests.loops.models import Stack

gain = 0.5


def decayed(x: Tensor, weight: Tensor, decay: float = 0.9) -> tuple[Tensor, Tensor]:
    """A leaky integrator."""
    v = torch.zeros(x.shape[0], weight.shape[1], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        v = decay * v + gain * torch.tanh(x[:, t] @ weight + v)
        out.append(v)
    return torch.stack(out, 1), v


class Agent:
    """No module: an object with tensors and a method."""

    def __init__(self) -> None:
        self.cell = nn.GRUCell(N, H).double()
        self.scale = torch.ones(H, dtype=torch.float64)
        self.steps = 0

    def values(self, x: Tensor, done: Tensor) -> Tensor:
        h, out = torch.zeros(x.shape[0], H, dtype=x.dtype), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h * (1 - done[:, t, None])) * self.scale
            out.append(h)
        return torch.stack(out, 1)


class Fast(Agent):
    @bppsa.loop
    def values(self, x: Tensor, done: Tensor) -> Tensor:
        return super().values(x, done)


class Player(Agent):
    """Counts its calls, and looks at the episodes before it begins."""

    @bppsa.loop
    def values(self, x: Tensor, done: Tensor) -> Tensor:
        self.steps += 1
        h, out = torch.zeros(x.shape[0], H, dtype=x.dtype), []
        if bool((done == 0).all()):
            done = torch.zeros_like(done)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h * (1 - done[:, t, None])) * self.scale
            out.append(h)
        return torch.stack(out, 1)


def strategies(function: Any) -> list[str]:
    return [decision.strategy for decision in bppsa.report(function).decisions]


def test_function(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = bppsa.loop(decayed)
    weight = torch.randn(N, H, dtype=torch.float64, requires_grad=True)
    for decay in (0.9, 0.9, 0.9, 0.5, 0.5):
        given = x()
        results = [function(given, weight, decay) for function in (decayed, fast)]
        for expected, found in zip(*results, strict=True):
            assert_alike(expected, found)
        for expected, found in zip(
            *(torch.autograd.grad(r[0].square().sum() + r[1].sum(), (given, weight)) for r in results), strict=True
        ):
            assert_alike(expected, found)
    assert strategies(fast) == ["sequential"]
    monkeypatch.setitem(globals(), "gain", 0.25)
    for _ in range(2):
        given = x()
        assert_alike(decayed(given, weight)[0], fast(given, weight)[0])


def test_method() -> None:
    torch.manual_seed(0)
    agents = [Fast(), Fast()]
    done = (torch.rand(B, T) < 0.3).double()
    for _ in range(3):
        for agent in agents:
            given = x()
            assert_alike(Agent.values(agent, given, done), agent.values(given, done))
    assert strategies(Fast.values) == ["sequential"]
    agents[0].scale = agents[0].scale * 2
    given = x()
    assert_alike(Agent.values(agents[0], given, done), agents[0].values(given, done))


def test_update_that_takes_gradients() -> None:
    """Behind its loop, which runs as a scan."""
    weight = torch.randn(N, H, dtype=torch.float64, requires_grad=True)

    def update(x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], H, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ weight + h)
        loss = F.mse_loss(h, torch.ones_like(h))
        loss.backward()
        return loss.detach()

    fast = bppsa.loop(update)
    for _ in range(4):
        given, found = x(), []
        for run in (update, fast):
            weight.grad = None
            found.append((run(given), weight.grad))
        for expected, ours in zip(*found, strict=True):
            assert_alike(expected, ours)
    assert strategies(fast) == ["sequential"]


def test_takes_functions() -> None:
    with pytest.raises(ArgumentError, match="takes a function"):
        bppsa.loop(nn.GRUCell(2, 2))
    with pytest.raises(ArgumentError, match=r"neither|compile"):
        bppsa.report(decayed)


def test_check_compares_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPPSA_CHECK", "1")
    pair = Pair(Stack())
    assert pair.strategies(x()) == ["sequential"]


def test_check_raises_over_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that is made to compute something else is not believed, and with the check it is an error."""
    run = Fused.__call__
    monkeypatch.setattr(Fused, "__call__", lambda *given: [output * 1.001 for output in run(*given)])
    pair = Pair(Stack())
    assert pair.strategies(x()) == ["pytorch"]
    assert "differs from PyTorch's" in pair.decisions()[0].reason
    monkeypatch.setenv("BPPSA_CHECK", "1")
    with pytest.raises(GradientError, match="report it"):
        Pair(Stack()).call(x())


class Zeros(Cell):
    """Its head begins with zeros, so nothing of its loop can be seen in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, keep: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = torch.where(keep[:, t, None], self.cell(x[:, t], h), -h)
            out.append(self.head(h))
        return torch.stack(out, 1)


@pytest.mark.parametrize("output", [0, 1])
def test_a_call_that_tells_nothing_is_no_witness(output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, keep = Pair(Zeros()), torch.ones(B, T, dtype=torch.bool)
    assert pair.strategies(torch.zeros(B, T, N, dtype=torch.float64), keep) == ["sequential"]
    run = Fused.__call__

    def wrong(*given: Any) -> list[Tensor]:
        return [o * 1.001 if i == output else o for i, o in enumerate(run(*given))]

    monkeypatch.setattr(Fused, "__call__", wrong)
    pair = Pair(Zeros())
    (strategy,) = pair.strategies(torch.zeros(B, T, N, dtype=torch.float64), keep)
    assert strategy == ("sequential" if output == 0 else "pytorch")  # the last state, which nobody reads


def test_python_around_the_loop_of_a_method() -> None:
    plain, fast = Agent(), Player()
    fast.cell.load_state_dict(plain.cell.state_dict())
    for seed in range(4):
        torch.manual_seed(seed)
        given, done = x(), (torch.rand(B, T) < 0.2).double()
        assert_alike(plain.values(given, done), fast.values(given, done))
        assert fast.steps == seed + 1
    assert strategies(fast.values) == ["sequential"]
