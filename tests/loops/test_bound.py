"""What a loop or a cell reads and changes through methods in C of what it does not name, and objects of numpy."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.runtime.recurrent.reference import loop
from tests.loops.beside import Pair, assert_alike, run
from tests.loops.cells import B, Cell, H, T, x
from tests.scan.support import same

TABLE, ROW, OBJECTS, MASKED = {"rate": 1.0}, [1.0], np.empty(1, object), np.ma.array([1.0])


def scaled(value: float) -> float:
    return value * ROW[0]


class Base:
    rate = 1.0


class Other:
    rate = 1.5


class Derived(Base):
    pass


READS: dict[str, Callable[[], Any]] = {
    "get": TABLE.get,
    "values": TABLE.values,
    "a view": lambda: max(VIEW),
    "proxy": types.MappingProxyType(TABLE).get,
    "item": ROW.__getitem__,
    "partial": partial(TABLE.get, "rate"),
    "objects": lambda: OBJECTS[0][0],
    "masked": lambda: float(MASKED[0]),
    "ufunc": lambda: float(UFUNC(1.0)),
    "bases": lambda: Derived().rate,
}
VIEW, UFUNC = TABLE.values(), np.frompyfunc(scaled, 1, 1)
GIVEN = {"get": ("rate",), "proxy": ("rate",), "item": (0,)}


def change(rate: float) -> None:
    TABLE["rate"] = ROW[0] = MASKED[0] = rate
    OBJECTS[0] = [rate]
    Derived.__bases__ = (Base,) if rate == 1.0 else (Other,)


class Reads(Cell):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.read, self.given = READS[name], GIVEN.get(name, ())

    def rate(self) -> float:
        found = self.read(*self.given)
        return found if isinstance(found, float) else max(found)

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h) * self.rate()
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("name", READS)
def test_what_is_read_in_a_loop(name: str) -> None:
    change(1.0)
    model = Reads(name).double()
    fast = bppsa.compile(model)
    for rate in (1.0, 1.0, 1.5, 1.5, 1.0, 1.5):
        change(rate)
        given = x()
        for expected, found in zip(run(model, (given,), {}, 0), run(fast, (given,), {}, 0), strict=True):
            assert_alike(expected, found)


@pytest.mark.parametrize("name", READS)
def test_what_is_read_in_a_cell(name: str) -> None:
    change(1.0)
    model = Reads(name).double()

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + x) * model.rate()
        return h, h

    for rate in (1.0, 1.0, 1.5, 1.5, 1.0):
        change(rate)
        carry, xs = torch.randn(B, H, dtype=torch.float64), torch.randn(T, B, H, dtype=torch.float64)
        same([bppsa.scan(cell, carry, xs)[1]], [loop(cell, carry, xs)[1]])


class Pushes(Cell):
    def __init__(self, log: Any, push: Any) -> None:
        super().__init__()
        self.log, self.push = log, push

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t, x_t in enumerate(x.unbind(1)):
            h = self.cell(x_t, h)
            self.push(t)
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("of", ["append", "in a partial", "in a list", "of a deque"])
def test_what_is_appended(of: str) -> None:
    log: Any = deque() if of == "of a deque" else []
    push: Any = partial(log.append) if of == "in a partial" else log.append
    model = Pushes(None, [push].pop() if of == "in a list" else push).double()
    fast = bppsa.compile(model)
    for call in range(1, 5):
        fast(x())
        assert len(log) == call * T


class Lazy(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)
            out.append(h)
        return self.last(torch.stack(out, 1))


def test_a_lazy_layer() -> None:
    torch.manual_seed(0)
    model = Lazy().double()
    pair = Pair(model)
    for seed in range(4):
        decisions = pair.call(x(), seed=seed)
    assert [decision.strategy for decision in decisions] == ["sequential"]


@pytest.mark.parametrize("other", [lambda w: w.detach().requires_grad_(), lambda w: sharing(w)])
def test_two_leaves_of_one_memory(other: Callable[[Tensor], Tensor]) -> None:
    weight = torch.randn(H, H, dtype=torch.float64, requires_grad=True)
    twin = other(weight)

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ weight + x @ twin)
        return h, h

    carry, xs = torch.randn(B, H, dtype=torch.float64), torch.randn(T, B, H, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad(scan(cell, carry, xs)[1].square().sum(), [weight, twin]) for scan in (bppsa.scan, loop)
    )
    same(found, expected)


def sharing(weight: Tensor) -> Tensor:
    twin = torch.zeros_like(weight).requires_grad_()
    twin.data = weight.data
    return twin
