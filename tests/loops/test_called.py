"""Loops in functions that a forward calls, where Python runs the forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from tests.loops.beside import Pair, assert_alike
from tests.loops.cells import B, Cell, H, T, x

CALLS = []  # of a function, as its module keeps them


def unrolled(step: Callable[..., Any], x: Tensor, h: Tensor, scale: float = 1.0) -> Tensor:
    CALLS.append(len(x))
    out, x = [], scale * x
    for t in range(x.shape[1]):
        h = step(x[:, t], h)
        out.append(h)
    return torch.stack(out, 1)


@torch.no_grad()
def warm(cell: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), H)
    for t in range(x.shape[1]):
        h = cell(x[:, t], h)
    return h


class Runner:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def step(self, cell: Any, x: Tensor, h: Tensor) -> Tensor:
        return self.scale * cell(x, h)

    def run(self, cell: Any, x: Tensor, h: Tensor) -> Tensor:
        out = []
        for t in range(x.shape[1]):
            h = self.step(cell, x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


class Counting(Cell):
    calls, scale = 0, 0.9

    def __init__(self) -> None:
        super().__init__()
        self.runner = Runner(0.9)

    def begin(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Helped(Counting):
    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        return unrolled(lambda each, h: self.scale * self.cell(each, h), x, warm(self.cell, x))


class Bound(Counting):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return self.scale * self.cell(x, h)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(unrolled(self.step, self.begin(x), self.start(x)))


class ByObject(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return self.runner.run(self.cell, self.begin(x), self.start(x))


class Parent(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return self.runner.run(self.cell, x, self.start(x))


class Child(Parent):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(self.begin(x)))


class OwnLoop(Counting):
    def forward(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


class Grandchild(OwnLoop):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.begin(x))


class Callable_(Counting):
    def __call__(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1), self.begin(x)


@pytest.mark.parametrize("kind", [Helped, Bound, ByObject, Child, Grandchild, Callable_])
def test_it_runs_as_a_scan(kind: type[Counting]) -> None:
    pair = Pair(kind())
    for scale in (0.9, 0.9, 0.9, 0.5, 0.5):
        pair.both(lambda model, scale=scale: setattr(model, "scale", scale))  # type: ignore[misc]
        pair.both(lambda model, scale=scale: setattr(model.runner, "scale", scale))  # type: ignore[misc]
        CALLS.clear()
        decisions = pair.call(x())
        assert pair.plain.calls == pair.fast.calls
        assert len(CALLS) in (0, 2)
    assert {decision.strategy for decision in decisions} == {"sequential"}


def test_a_function_that_is_put_in_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Bound())
    for _ in range(3):
        pair.call(x())
    monkeypatch.setitem(globals(), "unrolled", lambda step, x, h: step(x[:, 0], h))
    pair.call(x())


def test_a_function_that_calls_another() -> None:
    def around(x: Tensor, cell: Any, found: list[Any]) -> Tensor:
        y = unrolled(cell, x, x.new_zeros(len(x), H))
        found.append(y.detach().max().item())
        return y

    cell, given = torch.nn.GRUCell(3, H).double(), x()
    looped, expected, found = bppsa.loop(around), [], []
    for _ in range(3):
        y = looped(given, cell, found)
        torch.testing.assert_close(y, around(given, cell, expected))
    assert found == pytest.approx(expected)
    (decision,) = bppsa.report(looped).decisions
    assert decision.strategy == "sequential"


class Overlapping(Counting):
    """A loop that is given a view of what it reads."""

    view = 0

    def forward(self, x: Tensor) -> Any:
        x = self.begin(x)
        first = x[:, 0] if self.view == 0 else x[:, 0].detach() if self.view == 1 else x.transpose(0, 1)[0]
        h, y, out = self.start(x), first, []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] * first + y, h)
            y = torch.cat([self.head(h), x[:, 0, :1]], -1)
            out.append(y)
        return torch.stack(out, 1), first


def test_a_loop_that_is_given_a_view_of_what_it_reads() -> None:
    pair = Pair(Overlapping())
    for view in (0, 0, 0, 1, 1, 2, 2, 0):
        pair.both(lambda model, view=view: setattr(model, "view", view))  # type: ignore[misc]
        (decision,) = pair.call(x())
    assert decision.strategy == "sequential"


def test_a_function_that_gets_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook gives it that loads a file again."""

    def other(step: Callable[..., Any], x: Tensor, h: Tensor) -> Tensor:
        return step(x[:, 0], h)

    pair = Pair(Bound())
    for _ in range(3):
        pair.call(x())
    monkeypatch.setattr(unrolled, "__defaults__", (0.5,))
    pair.call(x())
    monkeypatch.setattr(unrolled, "__code__", other.__code__)
    pair.call(x())
    monkeypatch.setattr(Bound.forward, "__code__", Counting.begin.__code__)
    pair.call(x())


class Accumulates(Cell):
    """Its step, a method, adds to a tensor that it is given."""

    def attend(self, x: Tensor, h: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(x + total[:, :1], h)
        total += self.head(h).softmax(-1)
        return h, total

    def forward(self, x: Tensor, lengths: Tensor, total: Tensor) -> Any:
        mask = torch.arange(int(lengths.max())) < lengths[:, None]  # which Python runs around the loop
        h, begun, out = self.start(x), total, []
        for x_t in x.unbind(1):
            h, total = self.attend(x_t, h, total)
            out.append(h)
        return torch.stack(out, 1) * mask[..., None], begun * 2, total


def test_a_method_writes_into_a_state_that_it_is_given() -> None:
    pair = Pair(Accumulates())
    for call in range(6):
        totals = [torch.full((B, 2), 1.0 + call, dtype=torch.float64) for _ in range(2)]
        given, lengths, ran = x(), torch.tensor([T, 3, T - 1]), []
        for model, total in zip((pair.plain, pair.fast), totals, strict=True):
            result = model(given, lengths, total)
            wanted = [given, *model.parameters()]
            ran.append([*result, *torch.autograd.grad(sum(y.square().sum() for y in result), wanted), total])
        for expected, found in zip(*ran, strict=True):
            assert_alike(expected, found)
    assert [decision.strategy for decision in pair.decisions()] == ["sequential"]
