"""Pairs and their combination against plain float64, and where plain numbers leave their range, against fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bppsa.runtime.recurrent.scan.pairs import ZERO, Pair, ScaledRows, apply, compose, product, total


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(seed: int, width: int, live: Tensor | None = None) -> Pair:
    return Pair(
        ScaledRows.of(random(2, width, width, seed=seed)), ScaledRows.of(random(2, width, 1, seed=seed + 1)), live
    )


def exact(rows: ScaledRows) -> list[list[Fraction]]:
    return [
        [Fraction(v) * Fraction(2) ** int(e) for v in row]
        for row, e in zip(rows.values.flatten(0, -2).tolist(), rows.exponents.flatten().tolist(), strict=True)
    ]


@given(width=st.integers(1, 5), seed=st.integers(0, 1000))
def test_combinations_are_those_of_affine_maps(width: int, seed: int) -> None:
    a, b, g = pair(seed, width), pair(seed + 2, width), ScaledRows.of(random(2, width, 1, seed=seed + 4))
    both = apply(compose(a, b), g).plain()
    torch.testing.assert_close(both, apply(a, apply(b, g)).plain(), rtol=1e-12, atol=1e-12)
    by_hand = a.matrix.plain() @ (b.matrix.plain() @ g.plain() + b.vector.plain()) + a.vector.plain()
    torch.testing.assert_close(both, by_hand, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 1000))
def test_combination_is_associative(seed: int) -> None:
    a, b, c = (pair(seed + i, 3) for i in range(3))
    left, right = compose(compose(a, b), c), compose(a, compose(b, c))
    torch.testing.assert_close(left.matrix.plain(), right.matrix.plain(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(left.vector.plain(), right.vector.plain(), rtol=1e-12, atol=1e-12)


@given(exponents=st.lists(st.integers(-3000, 3000), min_size=4, max_size=4))
def test_rows_keep_numbers_that_no_float_holds(exponents: list[int]) -> None:
    first, second = torch.tensor(exponents[:2]), torch.tensor(exponents[2:])
    a = ScaledRows.of(torch.diag(torch.tensor([1.5, -0.75], dtype=torch.float64)), first)
    b = ScaledRows.of(torch.diag(torch.tensor([1.25, 3.0], dtype=torch.float64)), second)
    found = exact(product(a, b))
    assert found[0] == [Fraction(15, 8) * Fraction(2) ** (exponents[0] + exponents[2]), 0]
    assert found[1] == [0, -Fraction(9, 4) * Fraction(2) ** (exponents[1] + exponents[3])]


def test_a_row_meets_rows_of_very_different_size() -> None:
    """The large one decides, and where it is multiplied by zero the small one."""
    b = ScaledRows.of(torch.ones(2, 1, dtype=torch.float64), torch.tensor([2000, -2000]))
    a = ScaledRows.of(torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    assert exact(product(a, b)) == [[Fraction(2) ** 2000], [Fraction(2) ** -2000]]


def test_sums_align() -> None:
    a = ScaledRows.of(torch.ones(2, 1, dtype=torch.float64), torch.tensor([1500, -1500]))
    b = ScaledRows.of(torch.ones(2, 1, dtype=torch.float64), torch.tensor([1501, -1502]))
    assert exact(total(a, b)) == [[3 * Fraction(2) ** 1500], [Fraction(5, 4) * Fraction(2) ** -1500]]


def test_zeros_stay_zeros() -> None:
    zeros = ScaledRows.of(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([5000, -5000]))
    assert zeros.exponents.tolist() == [ZERO, ZERO]
    for made in (product(zeros, zeros), total(zeros, zeros), product(zeros, ScaledRows.of(random(2, 2)))):
        assert not made.plain().any()
        assert made.exponents.tolist() == [ZERO, ZERO]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so(value: float) -> None:
    broken = random(1, 2, 2)
    broken[0, 0, 0] = value
    a = Pair(ScaledRows.of(broken), ScaledRows.of(torch.zeros(1, 2, 1, dtype=torch.float64)))
    found = apply(a, ScaledRows.of(torch.ones(1, 2, 1, dtype=torch.float64))).plain()
    assert not found[0, 0].isfinite()
    assert found[0, 1].isfinite()


def test_rows_that_are_cut_off_see_nothing_of_what_comes_after() -> None:
    """Neither do they when they are combined with what lies before them."""
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    broken = Pair(
        ScaledRows.of(torch.full((2, 3, 3), torch.nan, dtype=torch.float64)),
        ScaledRows.of(torch.full((2, 3, 1), torch.nan, dtype=torch.float64)),
        ~nothing,
    )
    reset, before = pair(1, 3, nothing), pair(2, 3, ~nothing)
    reset = Pair(ScaledRows.of(torch.zeros(2, 3, 3, dtype=torch.float64)), reset.vector, nothing)
    for whole in (compose(compose(before, reset), broken), compose(before, compose(reset, broken))):
        assert whole.matrix.plain().isfinite().all()
        expected = before.matrix.plain() @ reset.vector.plain() + before.vector.plain()
        torch.testing.assert_close(whole.vector.plain(), expected)
