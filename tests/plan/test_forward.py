"""Forwards by name and by text, and what `auto` makes of them."""

from __future__ import annotations

import pytest

from bppsa import strategies
from bppsa.errors import StrategyError
from bppsa.plan.forward import SEQUENTIAL, Forward, division, forward_of
from bppsa.plan.strategy import chunk_length


@pytest.mark.parametrize(
    "forward",
    [
        SEQUENTIAL,
        Forward("auto"),
        Forward("pytorch"),
        strategies.newton(),
        strategies.newton(16, 5, 1e-6, "diagonal", True),
        strategies.newton(jacobian="diagonal"),
    ],
    ids=str,
)
def test_the_text_of_a_forward_is_that_forward(forward: Forward) -> None:
    assert forward_of(str(forward)) == forward == forward_of(forward)


@pytest.mark.parametrize(
    "text", ["", "newtons", "newton(", "auto(length=3)", "newton(width=3)", "newton(length=x)", "newton(warm_start=1)"]
)
def test_unknown_ones(text: str) -> None:
    with pytest.raises(StrategyError, match=r"known|newton"):
        forward_of(text)


@pytest.mark.parametrize(
    "options",
    [{"length": 0}, {"length": 1.5}, {"iterations": 0}, {"tolerance": 0.0}, {"jacobian": "half"}, {"warm_start": 1}],
)
def test_wrong_values(options: dict[str, object]) -> None:
    with pytest.raises(StrategyError, match=next(iter(options))):
        strategies.newton(**options)  # type: ignore[arg-type]


def test_a_forward_is_no_strategy() -> None:
    from bppsa.plan.strategy import strategy_of

    with pytest.raises(StrategyError, match="unknown strategy"):
        strategy_of(strategies.newton())  # type: ignore[arg-type]


def test_chunks() -> None:
    assert division(strategies.newton(), 1000).length == chunk_length(1000)
    assert (division(strategies.newton(7), 20).length, division(strategies.newton(7), 20).count) == (7, 3)
