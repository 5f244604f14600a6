"""Where to cut a sequence: the largest stage as small as it can be, and few bytes over the cuts.

The least possible largest stage is found by halving. A cost larger than that of an even stage counts as one, so that
the other stages share the rest evenly. Among all cuts that keep within a margin of it, a dynamic programme finds those
with the fewest bytes, and among these the ones whose largest stage is smallest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

MARGIN = 0.05
STEPS = 40  # of halving: to 2^-40 of the whole
ROUNDING = 1e-9

Floats = npt.NDArray[np.float64]


def balanced(costs: Sequence[float], crossing: Sequence[float], stages: int) -> list[int]:
    """The ends of the stages, each an index into `costs` [n], n >= stages; crossing [n - 1]: bytes from i to i + 1.

    No stage is empty.
    """
    assert 1 <= stages <= len(costs) == len(crossing) + 1
    costs, low = levelled(costs, stages)
    ends = np.array([0.0, *accumulate(costs)])
    over = np.array([0.0, *crossing, 0.0])  # of a cut before i
    high = low * (1 + MARGIN)
    fewest = bytes_of(ends, over, stages, high)[-1][-1]
    if bytes_of(ends, over, stages, low)[-1][-1] <= fewest:
        high = low
    for _ in range(STEPS // 2):
        middle = (low + high) / 2
        if bytes_of(ends, over, stages, middle)[-1][-1] <= fewest:
            high = middle
        else:
            low = middle
    return traced_back(bytes_of(ends, over, stages, high), first_starts(ends, high))


def levelled(costs: Sequence[float], stages: int) -> tuple[list[float], float]:
    """The costs, none above the largest stage of the most even cut of these, and that largest stage."""
    low, high = 0.0, sum(costs)
    for _ in range(STEPS):
        middle = (low + high) / 2
        ends = [0.0, *accumulate(min(cost, middle) for cost in costs)]
        low, high = (low, middle) if fits(ends, stages, middle) else (middle, high)
    return [min(cost, high) for cost in costs], high


def fits(ends: list[float], stages: int, limit: float) -> bool:
    """Whether `stages` stages of at most `limit` hold everything: each takes as much as it can."""
    at = 0
    for _ in range(stages):
        at = bisect_right(ends, ends[at] + limit * (1 + ROUNDING)) - 1
    return at == len(ends) - 1


def first_starts(ends: Floats, limit: float) -> npt.NDArray[np.int64]:
    """For each end, the first start of a stage that is no larger than the limit."""
    return np.searchsorted(ends, ends - limit * (1 + ROUNDING), side="left")


def bytes_of(ends: Floats, over: Floats, stages: int, limit: float) -> list[Floats]:
    """[k][j]: the fewest bytes over the cuts of k stages that end before j, infinite where there are none."""
    starts = first_starts(ends, limit)
    fewest = np.full(len(ends), np.inf)
    fewest[0] = 0.0
    table = [fewest]
    for _ in range(stages):
        fewest = np.full(len(ends), np.inf)
        fewest[1:] = least_between(table[-1], starts[1:]) + over[1:]
        table.append(fewest)
    return table


def least_between(values: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """The least of values[starts[j] : j + 1] for each j, from the least of all stretches of 1, 2, 4, ... values."""
    stops = np.arange(1, len(starts) + 1)
    level = np.frexp(stops - starts)[1] - 1  # of the longest stretch that fits twice
    found = np.empty(len(starts))
    stretch = values
    for power in range(int(level.max()) + 1):
        here = level == power
        found[here] = np.minimum(stretch[starts[here]], stretch[stops[here] - 2**power])
        stretch = np.minimum(stretch[: -(2**power)], stretch[2**power :])
    return found


def traced_back(table: list[Floats], starts: npt.NDArray[np.int64]) -> list[int]:
    ends = [len(starts) - 1]
    for before in table[-2:0:-1]:
        start, end = int(starts[ends[-1]]), ends[-1]
        ends.append(start + int(np.argmin(before[start:end])))
    return ends[::-1]
