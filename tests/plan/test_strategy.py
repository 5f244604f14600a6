"""Strategies by name and as objects, and the chunks they cut."""

from __future__ import annotations

import pytest

from bppsa import strategies
from bppsa.errors import StrategyError
from bppsa.plan.levels import blelloch, hybrid, linear
from bppsa.plan.strategy import NAMES, chunk_length, divide, strategy_of


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_object_with_its_defaults(name: str) -> None:
    assert strategy_of(name) == getattr(strategies, name)() == strategy_of(strategy_of(name))
    assert str(strategy_of(name)) == name


@pytest.mark.parametrize("made", [strategies.chunked(length=7), strategies.hybrid(up_levels=3)])
def test_the_text_of_a_strategy_names_it(made: object) -> None:
    assert strategy_of(str(made)) == made


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(StrategyError, match=r"fastest.*auto, sequential, chunked, blelloch, hybrid"):
        strategy_of("fastest")


@pytest.mark.parametrize("length", [0, -1, 2.5, True, "8"])
def test_lengths_are_whole_numbers_of_steps(length: object) -> None:
    with pytest.raises(StrategyError, match="length="):
        strategies.chunked(length=length)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "length"), [(1, 4), (100, 4), (1000, 16), (10_000, 64), (30_000, 64)])
def test_chunks_are_near_half_the_root(steps: int, length: int) -> None:
    assert chunk_length(steps) == length


def test_divisions() -> None:
    assert divide(strategies.sequential(), 100).count == 1
    chunked = divide(strategies.chunked(16), 100)
    assert (chunked.length, chunked.count, chunked.scan) == (16, 7, linear(7))
    assert divide(strategies.blelloch(), 100).scan == blelloch(100)
    assert divide(strategies.hybrid(3), 100).scan == hybrid(100, 3)
    assert divide(strategies.hybrid(), 100).scan == hybrid(100, 3)
