"""Calls whose kind takes long to find, as where a model's code reaches a whole library, run as they are fastest."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.frontend.loops import call
from bppsa.frontend.loops.loop_plan import COMPARED, TIMED, PlanTimes
from tests.loops.beside import assert_alike, run
from tests.loops.cells import Cell, x


class Stacks(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)
            out.append(h)
        return torch.stack(out, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked for the kind of a call, which takes a while of a module, and not of a loop alone."""
    found, asked = call.call_of, []

    def call_of(root: Any, *given: Any) -> Any:
        asked.append(root)
        if isinstance(root, Stacks):
            time.sleep(0.05)
        return found(root, *given)

    monkeypatch.setattr(call, "call_of", call_of)
    return asked


def test_the_loop_is_found_alone(asked: list[Any]) -> None:
    model = Stacks().double()
    fast, told = bppsa.compile(model, strategy="sequential"), []
    for _ in range(1 + TIMED + COMPARED + 3):
        given = x()
        for expected, found in zip(run(model, (given,), {}, 0), run(fast, (given,), {}, 0), strict=True):
            assert_alike(expected, found)
        told.append(str(bppsa.report(fast)))
    assert sum("to see what a plan gains" in each for each in told) == COMPARED
    assert bppsa.report(fast).decisions[0].strategy == "sequential"
    asked.clear()
    fast(x())
    assert asked
    assert not any(isinstance(root, Stacks) for root in asked)


def test_a_plan_that_gains_is_kept() -> None:
    times = PlanTimes()
    for _ in range(TIMED):
        assert not times.is_due
        times.add(asked=0.01, ran=0.001)
    assert [times.gains(0.2), times.gains(0.1)] == [None, True]
    assert not times.is_due


def test_one_slow_call_of_pytorchs_does_not_decide() -> None:
    times = PlanTimes()
    times.add(asked=0.01, ran=0.001)
    assert [times.gains(10.0), times.gains(0.002)] == [None, False]
