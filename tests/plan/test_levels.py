"""Scan plans against Algorithm 1 as the paper prints it, and against section 3.6's complexities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.plan.levels import ScanPlan, blelloch, complexity, hybrid, linear

Word = tuple[int, ...]  # which places' first values a place holds, in order; () is the identity


def run(plan: ScanPlan) -> list[Word]:
    """The plan on words, whose concatenation is as associative as matrices are, and commutes as little."""
    a: list[Word] = [(i,) for i in range(plan.n + 1)]
    for pairs in plan.up:
        for left, right in pairs:
            a[right] = a[left] + a[right]
    entering: Word = ()
    for place in plan.middle:
        a[place], entering = entering, entering + a[place]
    for pairs in plan.down:
        for left, right in pairs:
            a[left], a[right] = a[right], a[right] + a[left]
    return a


def algorithm_1(n: int) -> list[Word]:
    """Line by line. Both operands are words, so line 13's reversal shows in the order of the words."""
    a: list[Word] = [(i,) for i in range(n + 1)]
    top = math.ceil(math.log2(n + 1))
    for d in range(top - 1):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            a[right] = a[left] + a[right]
    a[n] = ()
    for d in reversed(range(top)):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            a[left], a[right] = a[right], a[right] + a[left]
    return a


def exclusive(n: int) -> list[Word]:
    return [tuple(range(i)) for i in range(n + 1)]


@given(n=st.integers(1, 300), up_levels=st.integers(0, 12))
def test_every_plan_is_an_exclusive_scan(n: int, up_levels: int) -> None:
    assert run(hybrid(n, up_levels)) == exclusive(n)


@pytest.mark.parametrize("n", [*range(1, 40), 127, 128, 129])
def test_blelloch_is_algorithm_1(n: int) -> None:
    assert run(blelloch(n)) == algorithm_1(n) == exclusive(n)
    top = math.ceil(math.log2(n + 1))
    assert (len(blelloch(n).up), len(blelloch(n).down)) == (top - 1, top)


@pytest.mark.parametrize("n", [1, 2, 7, 10, 64])
def test_no_pair_of_a_level_reads_what_another_writes(n: int) -> None:
    for pairs in (*blelloch(n).up, *blelloch(n).down):
        places = [place for pair in pairs for place in pair]
        assert len(set(places)) == len(places)


def test_the_levels_of_eleven_places_as_by_hand() -> None:
    plan = blelloch(10)
    assert plan.up == (
        ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)),
        ((1, 3), (5, 7), (9, 10)),
        ((3, 7),),
    )
    assert plan.down == (((7, 10),), ((3, 7),), ((1, 3), (5, 7), (9, 10)), plan.up[0])


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100, 1000])
def test_linear_is_back_propagation(n: int) -> None:
    """Every step applies one matrix to one vector; the last pair's result is asked of nobody."""
    found = complexity(linear(n))
    assert (found.steps, found.work, found.products) == (n - 1, n - 1, 0)


@pytest.mark.parametrize("n", [3, 10, 100, 1000, 30_000])
def test_blelloch_has_logarithmic_depth_and_linear_work(n: int) -> None:
    """Equations 6 and 7."""
    found = complexity(blelloch(n))
    assert found.steps <= 2 * math.ceil(math.log2(n + 1))
    assert n - 1 <= found.work <= 2 * n
    assert found.products <= n


@given(n=st.integers(1, 500))
def test_a_hybrid_lies_between(n: int) -> None:
    steps = [complexity(hybrid(n, k)).steps for k in range(n.bit_length() + 1)]
    products = [complexity(hybrid(n, k)).products for k in range(n.bit_length() + 1)]
    assert steps[0] == n - 1
    assert steps[-1] == complexity(blelloch(n)).steps
    assert products[0] == 0
    assert products == sorted(products)


def test_flops_grow_with_the_cube_of_the_width_only_for_products() -> None:
    found = complexity(linear(100))
    assert found.flops(20) == 2 * 99 * 400
    assert complexity(blelloch(100)).flops(20) > 10 * found.flops(20)
