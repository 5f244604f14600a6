"""Methods with a loop that a decorator has wrapped, and those whose loop is no call of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.fxpasses.reroll.outline.wrappers import called_only
from tests.loops.beside import Pair
from tests.loops.cells import Cell, x


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        self.calls = calls, function.__name__
        return function(self, *args)

    return wrapper


def scaled(by: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, x: Tensor) -> Any:
            return by * function(self, self.factor * x)

        return wrapper

    return decorator


class Decorated(Cell):
    factor, calls = 0.5, (0, "")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.start(x))

    @torch.no_grad()
    def generate(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] + 0.1 * torch.randn_like(x[:, t]), h)
            out.append(self.head(h))
        return torch.stack(out, 1)

    @scaled(2.0)
    @counted
    def rollout(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(self.head(h))
        return torch.stack(out, 1)

    @staticmethod
    @torch.no_grad()
    def encode(cell: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), cell.hidden_size)
        for t in range(x.shape[1]):
            h = cell(x[:, t], h)
        return h

    def code(self, x: Tensor) -> Tensor:
        return self.head(self.encode(self.cell, x))

    def until(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(100):
            if t == x.shape[1]:
                return torch.stack(out, 1)
            h = self.cell(x[:, t], h)
            out.append(self.head(h))

    def steps(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            yield self.head(h)

    def yielded(self, x: Tensor) -> Tensor:
        return torch.stack([*self.steps(x)], 1)


@pytest.mark.parametrize("method", ["generate", "rollout", "code", "until", "yielded"])
def test_it_is_called_in_the_place_of_the_model(method: str) -> None:
    pair = Pair(Decorated())
    pair.method = method
    for factor in (0.5, 0.5, 0.25, 0.25, 0.25):
        pair.both(lambda model, factor=factor: setattr(model, "factor", factor))  # type: ignore[misc]
        decisions = pair.call(x())
        before, after = pair.plain.calls, pair.fast.calls
        assert before[1] == after[1]
        assert "no call has run yet" not in str(bppsa.report(pair.fast))
    assert [decision.strategy for decision in decisions] == ["sequential"]


class Late(Cell):
    calls = 0, ""

    def forward(self, x: Tensor) -> Tensor:
        return self.rollout(x)

    @counted
    def rollout(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(self.head(h))
        return scale * torch.stack(out, 1)


def test_what_is_changed_in_a_decorated_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, inner = Pair(Late()), Late.rollout.__wrapped__  # type: ignore[attr-defined]
    pair.method = "rollout"
    for _ in range(3):
        (decision,) = pair.call(x())
    assert decision.strategy == "sequential"
    monkeypatch.setattr(inner, "__defaults__", (0.25,))
    pair.call(x())
    (cell,) = (cell for cell in Late.rollout.__closure__ or () if cell.cell_contents is inner)
    monkeypatch.setattr(cell, "cell_contents", lambda self, x: self.head(x[:, 0, :1].expand(-1, self.cell.hidden_size)))
    pair.call(x())


def test_what_a_decorator_does_goes_on() -> None:
    fast = bppsa.compile(Decorated().double())
    before = fast.calls[0]
    for _ in range(3):
        fast.rollout(x())
    fast.until(x())
    Decorated.rollout(fast, x())
    assert fast.calls[0] - before >= 3
    assert fast.calls[1] == "rollout"


def looks(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return function(*args), hash(function)

    return wrapper


def test_a_function_that_a_decorator_looks_at_stays() -> None:
    assert called_only(looks(x)) == {}  # type: ignore[arg-type]
    assert [*called_only(scaled(2.0)(x)).values()] == [x]  # type: ignore[arg-type]
