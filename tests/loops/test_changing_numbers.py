"""Numbers of Python's that change from call to call are inputs of one plan, unless they decide what is done."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.breadth import alternate
from tests.loops.beside import Pair
from tests.loops.cells import Cell, x


class Annealed(Cell):
    """In all the ways in which a kernel takes a number."""

    def forward(self, x: Tensor, eps: float, rate: float = 0.5) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            new = self.cell(x[:, t] * eps, h - rate * eps)
            h = torch.where(new > eps / 9, torch.lerp(h, new, rate), (1 - eps) * new + h / (1 + eps * eps))
            h = (eps - h).add(new, alpha=rate) + eps * t
            out.append(self.head(h) * rate)
        return torch.stack(out, 1)


class Held(Cell):
    """The same for a number that it holds, and counts down itself."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature, self.decay = 2.0, 0.9

    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        self.temperature *= self.decay
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] / self.temperature, h)
        return self.head(h)


def plans_of(pair: Pair) -> list[Any]:
    state = pair.fast._bppsa.loops
    return [plan for each in (state, *state.parts.values()) for plan in each.plans]


def test_a_number_that_changes_in_each_call() -> None:
    pair = Pair(Annealed())
    for k in range(6):
        decided = pair.call(x(), 0.9**k, seed=k)
        with torch.no_grad():
            pair.both(lambda model: [p.mul_(0.95) for p in model.parameters()])
    assert [decision.strategy for decision in decided] == ["sequential"]
    assert len(plans_of(pair)) == 2
    for k in range(4):
        pair.call(x(), 0.5, rate=0.3 + k / 9, seed=k)
    for value in (0.0, -0.0, -1.5, 1e30, math.inf):
        pair.call(x(), value, seed=3)
    pair.both(nn.Module.eval)
    assert pair.strategies(x(), 0.123) == ["sequential"]


def test_a_number_that_the_model_holds() -> None:
    pair = Pair(Held())
    for k in range(9):
        decided = pair.call(x(), seed=k)
    assert [decision.strategy for decision in decided] == ["sequential"]
    held = len(plans_of(pair))
    pair.call(x())
    assert len(plans_of(pair)) == held


def turned(value: float, compare: Callable[[float], Any]) -> float:
    return 2.0 if compare(value) else 1.0


DECIDE: list[Callable[[float], Any]] = [
    lambda eps: eps > 0.3,
    lambda eps: int(eps * 10) % 2,
    lambda eps: math.exp(eps) > 1.4,
    lambda eps: f"{eps:.1f}" == "0.3",
    lambda eps: max(eps, 0.3) == 0.3,
    lambda eps: {0.3: 1}.get(eps),
    lambda eps: bool(eps - 0.3),
    lambda eps: round(eps, 1) == 0.3,
    lambda eps: "%.1f" % eps == "0.3",  # noqa: UP031
    lambda eps: complex(eps).real > 0.3,
    lambda eps: eps.hex() == (0.3).hex(),
]


@pytest.mark.parametrize("decide", alternate(DECIDE))
def test_a_number_that_decides(decide: Callable[[float], Any]) -> None:
    class Decides(Cell):
        def forward(self, x: Tensor, eps: float) -> Any:
            h = self.start(x)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t] * eps, h) * turned(eps, decide)
            return self.head(h)

    pair = Pair(Decides())
    for eps in (0.2, 0.25, 0.35, 0.3, 0.31, 0.0, 0.25, 0.4):
        pair.call(x(), eps)


class Dropped(Cell):
    """What torch makes of the number is none of the table's."""

    def forward(self, x: Tensor, eps: float) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = nn.functional.dropout(self.cell(x[:, t], h), eps).clamp(max=eps)
        return self.head(h) + torch.tensor([eps, 2 * eps])


def test_a_number_in_other_ops() -> None:
    pair = Pair(Dropped())
    for k, eps in enumerate((0.5, 0.25, 0.5, 0.1, 0.2)):
        pair.call(x(), eps, seed=k)


class Rooted(Cell):
    def forward(self, x: Tensor, eps: float) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell((x[:, t] * eps**0.5).real, h)
        return self.head(h)


def test_a_number_whose_root_is_complex() -> None:
    pair = Pair(Rooted())
    for eps in (0.5, 0.25, 0.125, -0.75, 2.0):
        pair.call(x(), eps)


def test_a_complex_root_beside_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With BPPSA_CHECK=1 too, PyTorch has a result where no plan has one."""
    pair = Pair(Rooted())
    for seed, value in enumerate((0.5, 0.25, 0.125)):
        pair.call(x(), value, seed=seed)
    monkeypatch.setenv("BPPSA_CHECK", "1")
    pair.call(x(), 0.5, seed=4)
    pair.call(x(), -0.25, seed=5)


class Reflected(Cell):
    """An op that takes another number beside the one that changes."""

    def forward(self, x: Tensor, rate: float) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = torch.rsub(self.cell(x[:, t], h), rate, alpha=0.5)
        return h


def test_a_number_beside_another() -> None:
    pair = Pair(Reflected())
    for seed, rate in enumerate((1.0, 0.9, 0.9)):
        decisions = pair.call(x(), rate, seed=seed)
    assert [decision.strategy for decision in decisions] == ["sequential"]


class Returned(Cell):
    def forward(self, x: Tensor, eps: float) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h, eps = self.cell(x[:, t] * eps, h), eps * 0.9
        return h, eps, [eps * 2]


def test_a_number_that_is_returned() -> None:
    pair = Pair(Returned())
    for eps in (0.5, 0.25, 0.125, 0.75):
        pair.call(x(), eps)
