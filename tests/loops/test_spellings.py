"""Loops in rarer spellings, and what the report says of one loop that is several scans."""

from __future__ import annotations

import functools
import itertools
from typing import Any

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
