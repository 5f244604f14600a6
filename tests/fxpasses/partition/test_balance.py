"""Where a sequence is cut: beside every cut that there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bppsa.fxpasses.partition.balance import MARGIN, balanced


def sizes(costs: Sequence[float], ends: Sequence[int]) -> list[float]:
    return [sum(costs[a:b]) for a, b in pairwise((0, *ends))]


def cuts(n: int, stages: int) -> list[tuple[int, ...]]:
    return [(*inner, n) for inner in combinations(range(1, n), stages - 1)]


numbers = st.lists(st.integers(1, 20), min_size=4, max_size=9)


@given(numbers, st.integers(1, 4), st.data())
@settings(deadline=None)
def test_the_largest_stage_is_near_the_least_possible(costs: list[int], stages: int, data: st.DataObject) -> None:
    n = len(costs)
    crossing = data.draw(st.lists(st.integers(0, 9), min_size=n - 1, max_size=n - 1))
    ends = balanced(costs, crossing, stages)
    assert len(ends) == stages
    assert ends[-1] == n
    assert all(a < b for a, b in pairwise((0, *ends)))
    least = min(max(sizes(costs, other)) for other in cuts(n, stages))
    assert max(sizes(costs, ends)) <= least * (1 + MARGIN) + 1e-6


def test_among_even_cuts_the_fewest_bytes_cross() -> None:
    assert balanced([1.0] * 40, [9 if i != 20 else 1 for i in range(1, 40)], 2)[0] == 20
    assert balanced([1.0] * 41, [9 if i != 20 else 1 for i in range(1, 41)], 2)[0] == 20


def test_what_a_large_op_leaves_is_shared_evenly() -> None:
    assert sizes([1] * 6 + [30] + [1] * 6, balanced([1] * 6 + [30] + [1] * 6, [5, 1] * 6, 5)) == [3, 3, 30, 3, 3]
