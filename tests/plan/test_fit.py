"""Rates found again from calls that a known machine predicted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bppsa.plan.cost import Machine, Rates, Work
from bppsa.plan.fit import Measured, fitted
from tests.plan.records import machine

TRUE = machine(forward=Rates(30, 0.5, 4, 0.2), backward=Rates(20, 2, 3, 5))
KNOWN = machine(forward=Rates(10, 1, 1, 1), backward=Rates(10, 1, 1, 1))


def calls(of: Machine, count: int, scatter: float) -> list[Measured]:
    draw = random.Random(0)
    found = []
    for _ in range(count):
        sizes = [10 ** draw.uniform(0, 3), 10 ** draw.uniform(4, 8), 10 ** draw.uniform(2, 6)]
        phases = [(name, Work(1, *sizes)) for name in draw.sample(("forward", "backward"), draw.randint(1, 2))]
        found.append(Measured(phases, of.us(phases) * draw.uniform(1 - scatter, 1 + scatter)))
    return found


@pytest.mark.parametrize(("scatter", "tolerance"), [(0.0, 0.05), (0.1, 0.2)])
def test_finds_the_rates_again(scatter: float, tolerance: float) -> None:
    found = fitted(KNOWN, calls(TRUE, 200, scatter), "found", "measured", 1.1)
    assert (found.name, found.source, found.margin) == ("found", "measured", 1.1)
    for name in ("forward", "backward"):
        for part in ("launch", "step", "flops", "bytes"):
            assert getattr(found.rates[name], part) == pytest.approx(getattr(TRUE.rates[name], part), rel=tolerance)


def test_rates_that_no_call_tells_of_stay() -> None:
    found = fitted(KNOWN, calls(TRUE, 20, 0.0), "found", "measured", 1.0)
    assert found.rates["scan"] == KNOWN.rates["scan"]
    assert fitted(KNOWN, [], "found", "measured", 1.0).rates == KNOWN.rates


def test_a_call_that_was_disturbed_counts_for_little() -> None:
    given = calls(TRUE, 200, 0.0)
    given[::10] = [replace(call, us=20 * call.us) for call in given[::10]]
    found = fitted(KNOWN, given, "found", "measured", 1.0)
    assert found.rates["forward"].launch == pytest.approx(TRUE.rates["forward"].launch, rel=0.1)
