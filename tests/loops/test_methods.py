"""Methods and static methods of a module with a loop, which a user calls in the place of the module."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.loops import state
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, N, T, x


class Policy(Cell):
    """As policies of reinforcement learning are: single steps by the model, whole sequences by a method of it."""

    kind = nn.LSTM
    rollouts = 0

    @staticmethod
    def sequence(features: Tensor, state: Any, starts: Tensor, layer: nn.LSTM) -> Any:
        sequence = features.unflatten(0, (state[0].shape[1], -1)).transpose(0, 1)
        if torch.all(starts == 0.0):
            return layer(sequence, state)
        out = []
        for features, start in zip(sequence, starts.unflatten(0, (state[0].shape[1], -1)).t(), strict=True):
            keep = (1.0 - start).view(1, -1, 1)
            y, state = layer(features.unsqueeze(0), (keep * state[0], keep * state[1]))
            out += [y]
        return torch.cat(out), state

    def forward(self, features: Tensor, h: Tensor, c: Tensor, starts: Tensor) -> Any:
        self.rollouts += 1
        return self.sequence(features, (h, c), starts, self.cell)

    def evaluate(self, features: Tensor, h: Tensor, c: Tensor, starts: Tensor) -> Any:
        y, state = self.sequence(features, (h, c), starts, self.cell)
        return self.head(y), state


def sequences(rows: int, steps: int) -> tuple[Tensor, ...]:
    h, c = (torch.randn(1, rows, H, dtype=torch.float64, requires_grad=True) for _ in range(2))
    starts = torch.zeros(rows, steps, dtype=torch.float64)
    starts[0, 0] = starts[-1, steps // 2] = 1.0
    features = torch.randn(rows * steps, N, dtype=torch.float64, requires_grad=True)
    return features, h, c, starts.flatten()


def test_a_method_is_called_in_the_place_of_the_model() -> None:
    pair = Pair(Policy())
    pair.method = "evaluate"
    for rows, steps in ((3, T), (3, T), (2, T + 2), (2, T + 2), (3, T)):
        decisions = pair.call(*sequences(rows, steps))
        assert [decision.strategy for decision in decisions] == ["sequential"]
    assert type(pair.fast).sequence is Policy.sequence


def test_single_steps_before_whole_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left to PyTorch, and say nothing of what comes then."""
    monkeypatch.setattr(state, "IDLE", 3)
    pair = Pair(Policy())
    for method in ("__call__", "evaluate"):
        pair.method = method
        for _ in range(6):
            assert pair.call(*sequences(3, 1)) == ()
    assert [decision.strategy for decision in pair.call(*sequences(3, T))] == ["sequential"]
    pair.method = "__call__"
    for _ in range(3):
        decisions = pair.call(*sequences(3, T))
    assert [decision.strategy for decision in decisions] == ["sequential"]
    assert pair.plain.rollouts == pair.fast.rollouts == 9


class Agent(Cell):
    """Without a forward."""

    def values(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


def test_a_model_without_a_forward() -> None:
    pair = Pair(Agent())
    pair.method = "values"
    for _ in range(3):
        assert [decision.strategy for decision in pair.call(x())] == ["sequential"]


class Actor(Agent):
    """Its forward has no loop."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[:, 0], self.start(x)))


class WithActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = Actor()

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x) + self.actor.values(x)


class Listed(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), N), []
        for t in range(x.shape[1]):
            for layer in self:
                h = torch.tanh(layer(h + x[:, t]))
            out.append(h)
        return torch.stack(out, 1)


def unrolled(cell: nn.Module, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), H)
    for t in range(x.shape[1]):
        h = cell(x[:, t], h)
    return h


class Held(nn.Module):
    """The function with the loop is one that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(N, H)
        self.unrolled = functools.partial(unrolled)

    def forward(self, x: Tensor) -> Tensor:
        return self.unrolled(self.cell, x)


@pytest.mark.parametrize("method", ["values", "__call__"])
def test_a_method_with_a_loop_beside_a_forward_without(method: str) -> None:
    pair = Pair(Actor() if method == "values" else WithActor())
    pair.method = method
    for steps in (T, T, T + 2):
        assert [decision.strategy for decision in pair.call(x(steps))] == ["sequential"]
    if method == "values":
        pair.method = "__call__"
        assert pair.call(x()) == ()


@pytest.mark.parametrize("model", [Held, lambda: Listed([nn.Linear(N, N), nn.Linear(N, N)])])
def test_loops_in_functions_that_a_module_holds_and_in_lists_of_modules(model: Any) -> None:
    assert Pair(model()).strategies(x()) == ["sequential"]


def test_kinds_of_calls_that_seldom_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more plans have not paid, the more often a kind is seen before it gets one."""
    monkeypatch.setattr(state, "FREE", 2)
    monkeypatch.setattr(state, "PAYS", 4)
    pair = Pair(Agent())
    pair.method = "values"
    given = {rows: x().repeat(rows, 1, 1) for rows in (1, 2, 3, 4)}
    found = [pair.call(given[rows])[0] for rows in (1, 2, 3, 4, 3, 3, 4, 1, 1, 1, 4)]
    kinds = [decision.strategy for decision in found]
    assert kinds == ["sequential"] * 2 + ["pytorch"] * 2 + ["sequential"] * 7
    assert "of a new kind" in found[2].reason


class Resumes(Agent):
    """Binds what a loop of no steps leaves as it is, and has methods that decide nothing."""

    calls = 0

    def values(self, x: Tensor) -> Any:
        self.calls += 1
        h, step, t = self.start(x), x[:, 0] * 1, -1
        for step in x[:, 1:].unbind(1):
            h = self.cell(step, h)
        for t in range(x.shape[1] - 1):
            h = self.cell(x[:, t], h)
        else:
            h = h + t
        for i in range(x.shape[1] - 1):
            h = self.cell(x[:, i], h)
        return h, step

    def count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters() if self.values)


def test_variables_that_a_loop_begins() -> None:
    pair = Pair(Resumes())
    pair.method = "values"
    for steps in (T, 1, T, 1, T):
        decisions = pair.call(x(steps))
    assert [decision.strategy for decision in decisions] == ["sequential"] * 3
    before = bppsa.report(pair.fast)
    assert pair.fast.count() == pair.plain.count()
    assert bppsa.report(pair.fast) is before
    assert pair.fast.values.__self__ is pair.fast


def test_dynamo_sees_the_methods() -> None:
    model = Policy().double()
    given = sequences(2, 9)
    for whole in (bppsa.compile(Agent()), bppsa.compile(model)):
        function = whole.values if isinstance(whole, Agent) else whole.evaluate
        args = (x(9).float(),) if isinstance(whole, Agent) else given
        with torch.no_grad():
            found = torch.compile(function, backend="eager")(*args)
            torch.testing.assert_close(found, function(*args))
