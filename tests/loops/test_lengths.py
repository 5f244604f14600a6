"""A loop of many lengths: each is logged once, and all of them share one cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.frontend.loops.scans import fuse
from tests.loops.beside import Pair

Step = Callable[[int, int, Tensor, Tensor], Tensor]  # t, T, x of the step, carry


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each cell that is made."""
    made: list[Any] = []
    planned = fuse.planned

    def counted(*args: Any) -> Any:
        made.append(args)
        return planned(*args)

    monkeypatch.setattr(fuse, "planned", counted)
    return made


class ByStep(nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.inner, self.step = nn.Linear(3, 3), step

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, out, count = x.new_zeros(len(x), 3), [], x.shape[1]
        for t in range(count):
            new = self.step(t, count, self.inner(x[:, t]), h)
            h = new if lengths is None else torch.where((t < lengths)[:, None], new, h)
            out.append(h)
        return torch.stack(out, 1), h


def simple(t: int, steps: int, x: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(x + 0.5 * h)


def of(steps: int) -> Tensor:
    return torch.randn(2, steps, 3, dtype=torch.float64, requires_grad=True)


def test_fifty_lengths_plan_once(cells: list[Any]) -> None:
    pair = Pair(ByStep(simple))
    for steps in range(10, 60):
        (decision,) = pair.call(of(steps))
        assert (decision.strategy, decision.numbers["T"]) == ("sequential", steps)
    assert len(cells) == 1
    for steps in (12, 59, 31):
        (decision,) = pair.call(of(steps))
        assert decision.numbers["T"] == steps


GOING: dict[str, Step] = {
    "1 / T": lambda t, steps, x, h: torch.tanh(x + h * (1 / steps)),
    "over T": lambda t, steps, x, h: torch.tanh(x + h / steps),
    "t / T": lambda t, steps, x, h: torch.tanh(x + h * (t / steps)),
    "T - t": lambda t, steps, x, h: torch.tanh(x + h * 0.1 * (steps - t)),
}


@pytest.mark.parametrize("name", GOING)
def test_numbers_that_go_with_the_length_need_no_cell_of_their_own(name: str, cells: list[Any]) -> None:
    pair = Pair(ByStep(GOING[name]))
    for steps in (20, 21, 35, 12, 20, 21, 35):
        (decision,) = pair.call(of(steps))
        assert decision.strategy == "sequential"
    assert len(cells) <= 2  # that of the first length has the number in it


DIFFERENT: dict[str, Step] = {
    "above 30": lambda t, steps, x, h: torch.tanh(x + 0.5 * h) if steps <= 30 else torch.sigmoid(x - h),
    "odd": lambda t, steps, x, h: torch.tanh(x + (0.5 if steps % 2 else 0.25) * h),
    "one": lambda t, steps, x, h: torch.tanh(x + 0.5 * h) if steps != 25 else torch.tanh(x * h),
    "no inverse": lambda t, steps, x, h: torch.tanh(x + h * (2.0**-steps + 0.3)),
    "in one step": lambda t, steps, x, h: torch.tanh(x + (0.9 if t == 17 and steps == 31 else 0.5) * h),
    "every third": lambda t, steps, x, h: torch.tanh(x + 0.5 * h) if t % 3 else torch.tanh(x - h),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_from_length_to_length_is_told_from_what_does_not(name: str) -> None:
    pair = Pair(ByStep(DIFFERENT[name]))
    for steps in (30, 24, 25, 31, 1, 2, 3, 9, 30, 31, 24, 25):
        pair.call(of(steps))


def test_masks_of_lengths_serve_other_lengths(cells: list[Any]) -> None:
    pair = Pair(ByStep(simple))
    for steps in (20, 24, 31, 24):
        pair.call(of(steps), torch.tensor([steps, steps // 2]))
    assert len(cells) == 1


def test_a_loop_of_few_steps_is_told_with_its_line() -> None:
    pair = Pair(ByStep(simple))
    (decision,) = pair.call(of(5))
    assert (decision.strategy, decision.numbers["T"]) == ("pytorch", 5)
    assert "fewer than 8" in decision.reason
    assert "test_lengths.py:" in decision.path
    assert pair.strategies(of(20)) == ["sequential"]
    (decision,) = pair.call(of(5))
    assert decision.strategy == "pytorch"


def test_layers_are_no_loop_of_few_steps() -> None:
    layers = bppsa.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh()))
    layers(torch.randn(2, 3))
    assert not [d for d in bppsa.report(layers).decisions if d.kind == "loop"]


class Kalman(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.a = what, nn.Parameter(0.9 * torch.eye(3))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        p, h, out = noise[:, 0], torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            p = self.a @ p @ self.a.mT + noise[:, t]
            if self.what == "solve":
                h = torch.linalg.solve(p, x[:, t] + h)
            else:
                h = torch.tanh(h + x[:, t] * torch.logdet(p)[:, None])
                p = p / (1 + torch.logdet(p) ** 2)[:, None, None]
            out.append(h)
        return torch.stack(out, 1), p


@pytest.mark.parametrize("what", ["solve", "logdet"])
def test_pivots_that_nobody_reads_are_no_reason_without_gradients(what: str) -> None:
    pair, x, noise = Pair(Kalman(what)), of(20), torch.randn(2, 20, 3, 3, dtype=torch.float64)
    noise = noise @ noise.mT + torch.eye(3)
    with torch.no_grad():
        assert pair.strategies(x, noise) == ["sequential"]
