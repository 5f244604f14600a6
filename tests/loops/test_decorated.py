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
        assert "in a call yet" not in str(bppsa.report(pair.fast))
    assert [decision.strategy for decision in decisions] == ["sequential"]


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
