"""Which cells keep some of their states only, and how many steps lie between two of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bppsa.plan.recompute import HELD, LARGE, LEAST, StateSizes, steps_between

MATRIX = StateSizes(states=4 * 64 * 64 * 4, held=4 * 64 * 64 * 4, read=4 * 64 * 4 * 4, products=0)


def test_matrix_states_are_kept_at_about_every_root_of_t() -> None:
    assert steps_between(MATRIX, 200, 8) == 15
    assert steps_between(MATRIX, 100, 8) == 10


@pytest.mark.parametrize("steps", [200, 1000, 10_000])
def test_what_is_computed_again_stays_in_a_threads_cache(steps: int) -> None:
    length = steps_between(MATRIX, steps, 8)
    assert length is not None
    assert length * MATRIX.held <= HELD
    wide = replace(MATRIX, held=HELD)
    assert steps_between(wide, steps, 8) == LEAST


@pytest.mark.parametrize(
    "sizes",
    [
        replace(MATRIX, states=LARGE // (200 * 8)),
        replace(MATRIX, read=MATRIX.states),  # a vector's recurrence: its inputs are as large
        replace(MATRIX, products=64),  # an LSTM of 64 units: each step again costs a product
        replace(MATRIX, states=0),  # all states are outputs
    ],
    ids=["small", "wide inputs", "products", "outputs"],
)
def test_others_keep_all(sizes: StateSizes) -> None:
    assert steps_between(sizes, 200, 8) is None


def test_few_steps_are_kept_all() -> None:
    wide = replace(MATRIX, states=100 * LARGE)
    assert steps_between(wide, 2 * LEAST, 8) == LEAST
    assert steps_between(wide, 2 * LEAST - 1, 8) is None
