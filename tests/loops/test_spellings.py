"""Loops in rarer spellings, and what the report says of one loop that is several scans."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import B, Cell, H, N, T, x


class Folds(Cell):
    def forward(self, x: Tensor) -> Any:
        return functools.reduce(lambda h, x_t: self.cell(x_t, h), x.unbind(1), self.start(x))


class Accumulates(Cell):
    def forward(self, x: Tensor) -> Any:
        states = itertools.accumulate(x.unbind(1), lambda h, x_t: self.cell(x_t, h), initial=self.start(x))
        return torch.stack(list(states)[1:], 1)


def test_loops_of_the_standard_library() -> None:
    for kind in (Folds, Accumulates):
        pair = Pair(kind())
        assert pair.strategies(x()) == ["sequential"]
        pair.both(nn.Module.eval)
        assert pair.strategies(x(T + 2)) == ["sequential"]


class Both(Cell):
    """Reads the same slices of time from both ends, in one loop."""

    def __init__(self) -> None:
        super().__init__()
        self.back = nn.GRUCell(N, H)

    def forward(self, x: Tensor) -> Any:
        forth = back = self.start(x)
        for t in range(x.shape[1]):
            forth, back = self.cell(x[:, t], forth), self.back(x[:, -1 - t], back)
        return forth, back


def test_views_met_twice_without_gradients() -> None:
    pair = Pair(Both())
    with torch.no_grad():
        assert pair.strategies(x()) == ["sequential"]


class Squeezes(Cell):
    """Leaves out all dimensions of one item, of a batch of one also the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(H, 1)

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.split(1, 1):
            gate = torch.sigmoid(self.gate(h).squeeze())
            h = gate.unsqueeze(-1) * self.cell(x_t.squeeze(1), h)
            out.append(h)
        return torch.stack(out, 1)


def test_every_dimension_of_one_item_is_left_out() -> None:
    pair = Pair(Squeezes())
    for rows in (B, 1, B + 1):
        inputs = torch.randn(rows, T, N, dtype=torch.float64, requires_grad=True)
        assert pair.strategies(inputs) == ["sequential"]
    (decision,) = pair.call(x())
    assert decision.numbers["B"] == B  # not one row for all of the batch


class Losses(Cell):
    """A loss and a penalty are sums that the state does not wait for."""

    def forward(self, x: Tensor, wanted: Tensor) -> Any:
        h, loss, penalty = self.start(x), 0.0, 0.0
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            loss = loss + F.mse_loss(self.head(h), wanted[:, t])
            penalty = penalty + h.abs().mean()
        return loss, penalty


def test_a_line_for_each_loop() -> None:
    pair = Pair(Losses())
    assert pair.strategies(x(), torch.randn(B, T, 2, dtype=torch.float64)) == ["sequential"]
    assert "also run as scans: T=" in str(bppsa.report(pair.fast))


class Positions(Cell):
    """A Parameter has an item for each step."""

    def __init__(self, at: Callable[[int, int], int]) -> None:
        super().__init__()
        self.at = at
        self.positions = nn.Parameter(torch.randn(2 * T, N, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        h, steps = self.start(x), x.shape[1]
        for t in range(steps):
            h = self.cell(x[:, t] + self.positions[self.at(t, steps)], h)
        return h


class Zipped(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(T, N, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        h, states = self.start(x), []
        for x_t, position in zip(x.unbind(1), self.positions, strict=False):
            h = self.cell(x_t * position, h)
            states.append(h)
        return torch.stack(states, 1)


POSITIONS = {
    "forth": lambda: Positions(lambda t, steps: t),
    "back": lambda: Positions(lambda t, steps: steps - t),
    "every other": lambda: Positions(lambda t, steps: 2 * t),
    "zipped": Zipped,
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_parameter_with_an_item_for_each_step(kind: str) -> None:
    pair = Pair(POSITIONS[kind]())
    assert pair.strategies(x()) == ["sequential"]


class Grows(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, : t + 1].sum(1), h)  # grows
        return h


class Attends(Cell):
    def forward(self, x: Tensor) -> Any:
        states = [self.start(x)]
        for t in range(x.shape[1]):
            states.append(self.cell(x[:, t], torch.stack(states).mean(0)))  # to all before
        return states[-1]


class Differs(Cell):
    """Weights change at times that no step tells."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(N, N, dtype=torch.float64) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] @ self.weights[3 * t // x.shape[1]], h)  # weights
        return h


class Remembers(Cell):
    def forward(self, x: Tensor) -> Any:
        h, memory = self.start(x), x.new_zeros(x.shape[0], x.shape[1], H)
        for t in range(x.shape[1]):
            memory = memory.clone()
            memory[:, t] = h  # written
            h = self.cell(x[:, t], memory.sum(1))
        return h


@pytest.mark.parametrize(
    ("kind", "line", "what"),
    [
        (Remembers, "# written", "a tensor of [3, 1, 4] is one of [3, 2, 4] a step later"),
        (Grows, "# grows", "a tensor of [3, 2, 3] is one of [3, 3, 3] a step later"),
        (Attends, "# to all before", "tensors, and"),
        (Differs, "# weights", "reads another tensor"),
    ],
)
def test_the_first_op_that_is_another_one_is_told(kind: type[nn.Module], line: str, what: str) -> None:
    pair = Pair(kind())
    assert pair.strategies(x()) == ["pytorch"]
    (decision,) = pair.fast.report.decisions
    assert line in decision.reason
    assert what in decision.reason
