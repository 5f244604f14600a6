"""Methods of what states are in: a loop or a cell is given it, and has not to name its class."""

from __future__ import annotations

import dataclasses
import sys
from collections import namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bppsa
from bppsa.runtime.recurrent.reference import loop
from tests.loops.beside import Pair
from tests.loops.cells import B, H, T
from tests.scan.support import same

RATE = 1.5
SCALES = torch.ones(H, dtype=torch.float64)


class Typed(NamedTuple):
    h: Tensor
    count: Tensor

    def decayed(self) -> Any:
        return self._replace(h=self.h * RATE)


class Rated:
    @property
    def rate(self) -> float:
        return RATE


class Inherits(Rated, namedtuple("Inherits", "h count")):
    def decayed(self) -> Any:
        return self._replace(h=self.h * self.rate)


class Scaled(namedtuple("Scaled", "h count")):
    def decayed(self) -> Any:
        return self._replace(h=self.h * SCALES * RATE)


@dataclasses.dataclass
class Registered:
    h: Tensor
    count: Tensor

    def decayed(self) -> Any:
        return dataclasses.replace(self, h=self.h * RATE)

    def _replace(self, **changes: Any) -> Any:
        return dataclasses.replace(self, **changes)


pytree.register_dataclass(Registered)
KINDS = (Typed, Inherits, Scaled, Registered)


class Decays(nn.Module):
    def forward(self, xs: Tensor, state: Any) -> Any:
        out = []
        for x in xs.unbind(0):
            state, y = step(state, x)
            out.append(y)
        return torch.stack(out), state


def step(state: Any, x: Tensor) -> Any:
    state = state.decayed()
    state = state._replace(h=torch.tanh(x + state.h), count=state.count + 1)
    return state, state.h


def given(kind: Any) -> tuple[Tensor, Any]:
    xs = torch.randn(T, B, H, dtype=torch.float64, requires_grad=True)
    return xs, kind(torch.randn(B, H, dtype=torch.float64, requires_grad=True), torch.zeros(B, 1, dtype=torch.float64))


def change(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """What methods read, after every second call."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "RATE", 1.5 + 0.3 * (call // 2))
    monkeypatch.setattr(here, "SCALES", torch.full((H,), 1.0 + call // 2, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_loops(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Decays())
    for call in range(6):
        change(monkeypatch, call)
        pair.call(*given(kind), seed=call)


@pytest.mark.parametrize("kind", KINDS)
def test_scans(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in range(6):
        change(monkeypatch, call)
        xs, state = given(kind)
        wanted = [xs, state.h]
        found, expected = (
            torch.autograd.grad(run(step, state, xs)[1].square().sum(), wanted) for run in (bppsa.scan, loop)
        )
        same(found, expected)
