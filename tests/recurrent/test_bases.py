"""Modules with another base before nn.Module, whose objects are laid out otherwise; recurrent ones with a forward."""

from __future__ import annotations

import abc
import copy
import pickle
from typing import Any, Generic, Protocol, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import Cell, x

V = TypeVar("V")


class Called(Protocol):
    def called(self, x: Tensor) -> Any: ...


class Slots:
    __slots__ = ()


class Abstract(abc.ABC, Cell):
    @abc.abstractmethod
    def step(self, x: Tensor, h: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.step(x_t, h)
            out.append(h)
        return torch.stack(out, 1)


class Gru(Abstract):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return self.cell(x, h)


class OfAny(Generic[V], Gru):
    pass


class OfProtocol(Called, Gru):
    pass


class WithSlots(Slots, Gru):
    pass


class Layer(abc.ABC, nn.LSTM):
    pass


class Generator(Generic[V], nn.GRU):
    pass


@pytest.mark.parametrize("kind", [Gru, OfAny, OfProtocol, WithSlots])
def test_loops(kind: type[Gru]) -> None:
    pair = Pair(kind())
    assert pair.strategies(x()) == ["sequential"]
    assert isinstance(pair.fast, kind)
    assert type(pair.fast).__name__ == kind.__name__
    for copied in (copy.deepcopy(pair.fast), pickle.loads(pickle.dumps(pair.fast))):
        pair.fast = copied
        assert pair.strategies(x()) == ["sequential"]


class Doubles(nn.GRU):
    def forward(self, x: Tensor, hx: Tensor | None = None, factor: float = 2.0) -> Any:
        y, h = super().forward(x * factor, hx)
        return y + 1, h


class Between(nn.LSTM):
    def forward(self, x: Tensor, hx: Any = None) -> Any:
        return super().forward(x, hx)


class Clamps(Between):
    def forward(self, x: Tensor, hx: Any = None) -> Any:
        y, states = super().forward(x, hx)
        return y.relu(), states


class AbstractDoubles(abc.ABC, Doubles):
    pass


class ByName(nn.GRU):
    def forward(self, x: Tensor, hx: Tensor | None = None) -> Any:
        return nn.GRU.forward(self, x, hx)


@pytest.mark.parametrize("kind", [Layer, Generator, Doubles, Clamps, AbstractDoubles])
def test_recurrent_modules(kind: type[nn.RNNBase]) -> None:
    pair = Pair(kind(3, 4))
    given = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    pair.call(given)
    assert [decision.strategy for decision in bppsa.report(pair.fast).decisions] == ["sequential"]
    for model in (pair.plain, pair.fast):
        parametrizations.weight_norm(model, "weight_hh_l0")
    pair.call(given)


def test_a_forward_that_names_pytorchs_is_left_alone() -> None:
    fast = bppsa.compile(ByName(3, 4))
    fast(torch.randn(50, 2, 3))
    assert "ByName has a forward of its own" in str(bppsa.report(fast))


def test_copies_keep_the_forward() -> None:
    pair = Pair(Clamps(3, 4))
    given = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    for copied in (copy.deepcopy(pair.fast), pickle.loads(pickle.dumps(pair.fast)), bppsa.compile(pair.fast)):
        pair.fast = copied
        pair.call(given)
        assert [decision.strategy for decision in bppsa.report(pair.fast).decisions] == ["sequential"]


def test_a_forward_of_pytorchs_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a profiler, or a library that patches PyTorch, has it: before or after the model is compiled."""
    pair = Pair(nn.GRU(3, 4))
    given = torch.randn(50, 2, 3, dtype=torch.float64, requires_grad=True)
    pair.call(given)
    forward = nn.GRU.forward

    def doubled(self: nn.GRU, *args: Any, **kwargs: Any) -> Any:
        y, h = forward(self, *args, **kwargs)
        return 2 * y, h

    monkeypatch.setattr(nn.GRU, "forward", doubled)
    for fast in (pair.fast, bppsa.compile(copy.deepcopy(pair.plain))):
        pair.fast = fast
        pair.call(given)
        assert "has been replaced" in str(bppsa.report(fast))
    monkeypatch.undo()
    pair.call(given)
    assert [decision.strategy for decision in bppsa.report(pair.fast).decisions] == ["sequential"]


class Tags(nn.Module):
    """A mixin of a library's, which could be one of torch's."""


Tags.__module__ = "torch.ao.tags"


class TaggedDoubles(Tags, Doubles):
    pass


class Drops(nn.GRU):
    """Weight drop as it was written before there were parametrizations."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Any:
        whole = self._flat_weights
        self._flat_weights = [whole[0], whole[1] * 0.5, *whole[2:]]
        try:
            return super().forward(x, hx)
        finally:
            self._flat_weights = whole


class Registers(nn.GRU):
    def __init_subclass__(cls, key: str) -> None:
        super().__init_subclass__()

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Any:
        return super().forward(x, hx)


class Registered(Registers, key="gru"):
    pass


class StepByStep(nn.GRU):
    """Its loop names `super`, and nothing else of its module."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls % 100 == 0:
            print("a hundred calls")
        out, rest = [], x.unbind(0)
        for step in rest:
            y, hx = super().forward(step[None], hx)
            out.append(y)
        return torch.cat(out), hx


@pytest.mark.parametrize("kind", [TaggedDoubles, Drops, Registered, StepByStep])
def test_numbers_are_pytorchs(kind: type[nn.GRU]) -> None:
    pair = Pair(kind(3, 4))
    for seed in range(4):
        pair.call(torch.randn(12, 2, 3, dtype=torch.float64, requires_grad=True), seed=seed)
