"""Cuts of a sequence against all cuts there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bppsa.common.stages import Seconds
from bppsa.fxpasses.partition import partition
from bppsa.fxpasses.partition.cut.balance import MARGIN, balanced

CLOSE = 1e-6
LITTLE = 1e-3  # beside any cost but 0


def cuts(n: int, stages: int) -> Iterator[list[int]]:
    """The ends of the stages, in all ways."""
    for inner in combinations(range(1, n), stages - 1):
        yield [*inner, n]


def largest(costs: Sequence[float], ends: Sequence[int]) -> float:
    return max(sum(costs[a:b]) for a, b in pairwise([0, *ends]))


def largest_shared(costs: Sequence[float], ends: Sequence[int]) -> float:
    """Of the stages that hold more than one cost."""
    stages = [[cost for cost in costs[a:b] if cost] for a, b in pairwise([0, *ends])]
    return max((sum(stage) for stage in stages if len(stage) > 1), default=0.0)


def sent(crossing: Sequence[float], ends: Sequence[int]) -> float:
    return sum(crossing[end - 1] for end in ends[:-1])


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[float], list[float], int]:
    """Costs, bytes between neighbours, stages."""
    n = draw(st.integers(1, 9))
    costs = draw(st.lists(st.integers(0, 9).map(float), min_size=n, max_size=n))
    crossing = draw(st.lists(st.integers(0, 5).map(float), min_size=n - 1, max_size=n - 1))
    return costs, crossing, draw(st.integers(1, n))


@given(sequences())
def test_balanced_is_the_best_of_all_cuts(drawn: tuple[list[float], list[float], int]) -> None:
    """The fewest bytes of the cuts whose largest stage is near the least possible, and of these the most even; what
    has a stage to itself counts as no more than the largest of the other stages."""
    costs, crossing, stages = drawn
    every = list(cuts(len(costs), stages))
    least = max(min(largest_shared(costs, ends) for ends in every), LITTLE)
    costs = [min(cost, least) for cost in costs]
    even = [ends for ends in every if largest(costs, ends) <= least * (1 + MARGIN) * (1 + CLOSE)]
    fewest = min(sent(crossing, ends) for ends in even)
    best = min(largest(costs, ends) for ends in even if sent(crossing, ends) <= fewest + CLOSE)

    found = balanced(costs, crossing, stages)

    assert found in every
    assert sent(crossing, found) == pytest.approx(fewest)
    assert largest(costs, found) == pytest.approx(best, rel=CLOSE, abs=CLOSE)


def test_a_long_sequence_is_even() -> None:
    ends = balanced([1.0] * 10_000, [1.0] * 9_999, 64)
    assert largest([1.0] * 10_000, ends) <= 157 * (1 + MARGIN)


def test_what_a_large_op_leaves_is_shared_evenly() -> None:
    costs = [*[1.0] * 6, 30.0, *[1.0] * 6]
    assert balanced(costs, [5.0, 1.0] * 6, 5) == [3, 6, 7, 10, 13]


@given(sequences(), st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=9, max_size=9))
def test_stages_of_slower_workers_are_smaller(
    drawn: tuple[list[float], list[float], int], all_speeds: list[float]
) -> None:
    costs, crossing, stages = [cost + 1 for cost in drawn[0]], drawn[1], drawn[2]
    speeds = all_speeds[:stages]

    def slowest(ends: Sequence[int]) -> float:
        return max(sum(costs[a:b]) / speed for (a, b), speed in zip(pairwise([0, *ends]), speeds, strict=True))

    found = balanced(costs, crossing, stages, speeds, 0.01)
    assert len(found) == stages
    assert all(a < b for a, b in pairwise([0, *found]))
    assert slowest(found) <= 1.01 * (1 + CLOSE) * min(map(slowest, cuts(len(costs), stages)))


def test_measured_times_decide() -> None:
    """The sums of what the workers measure, whatever the ops' flops are."""
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 6.0, 6.0, 1.0, 1.0]
    told: list[int] = []

    def all_gather(own: list[Seconds]) -> list[list[Seconds]]:
        assert all(min(seconds) > 0 for seconds in own)
        told.append(len(own))
        if len(own) < len(times):
            return [[Seconds(4.0, 8.0)] * len(own)] * 2
        return [[Seconds(0.5 * t, t) for t in times], [Seconds(0.25 * t, 0.25 * t) for t in times]]

    found = partition(net, torch.randn(4, 8), 3, balance="measured", all_gather=all_gather)
    assert [stage.ops for stage in found.stages] == [7, 2, 3]
    assert [stage.seconds for stage in found.stages] == [(4.0, 8.0)] * 3
    assert told[:2] == [12, 3]
