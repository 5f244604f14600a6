"""Modules with a loop within a module that loops over them: each loop is looked at where it can become a scan."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, x


class Layer(Cell):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        x, h, out = self.norm(x.transpose(1, 2)).transpose(1, 2), self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(3), Layer(H)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_that_change_their_buffers() -> None:
    """The loop over layers does that too, however often it is logged: after its first log the layers have their turn,
    and it is told of no more."""
    pair = Pair(Layers())
    for seed in range(3):
        decisions = pair.call(x(), seed=seed)
    line = inspect.getsourcelines(Layer.forward)[1] + 2
    where = [f"layers.{i}:test_layers.py:{line}" for i in range(2)]
    assert [(d.strategy, d.path) for d in decisions[:2]] == [("pytorch", at) for at in where]
    assert "batch norm" in decisions[0].reason
    for seed in range(3):
        decisions = pair.call(x(), seed=seed)
    assert [(d.strategy, d.path.partition(":")[0]) for d in decisions] == [
        ("sequential", "layers.0"),
        ("sequential", "layers.1"),
    ]
    pair.both(lambda model: model.eval())
    assert pair.strategies(x(12)) == ["sequential", "sequential"]


class Prints(Cell):
    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            print(end="")
        return h[:, None].expand(len(x), x.shape[1], H)


def test_a_loop_around_others_that_are_no_scans_is_told() -> None:
    model = Layers()
    model.layers = nn.ModuleList([Prints(), Prints(H)])
    pair = Pair(model)
    for seed in range(10):
        decisions = pair.call(x(), seed=seed)
    line = inspect.getsourcelines(Prints.forward)[1] + 2
    at = f"test_layers.py:{line}"
    assert {(d.strategy, d.path) for d in decisions} == {
        ("pytorch", f"{each}{at}") for each in ("", "layers.0:", "layers.1:")
    }


def test_what_the_first_call_decides_is_told_once() -> None:
    fast = bppsa.compile(Layer(3).double().eval())
    fast(x())
    assert [decision.strategy for decision in bppsa.report(fast).decisions] == ["sequential"]


class Within(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return last(x)


@bppsa.loop
def last(x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), x.shape[2])
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h.roll(1, 1) * h)
    return h


def test_a_function_within_a_model_is_told_once() -> None:
    model = bppsa.compile(nn.Sequential(nn.Linear(3, H), nn.Tanh(), Within()).double())
    for _ in range(6):
        model(x())
    assert len(bppsa.report(model).decisions) == 1
