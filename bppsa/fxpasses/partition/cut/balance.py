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


def balanced(
    costs: Sequence[float],
    crossing: Sequence[float],
    stages: int,
    speeds: Sequence[float] = (),
    margin: float = MARGIN,
) -> list[int]:
    """The ends of the stages, each an index into `costs` [n], n >= stages; crossing [n - 1]: bytes from i to i + 1.

    No stage is empty. speeds: of each stage, how fast it is run; by default alike. margin: over the least possible time
    of the slowest stage, within which fewer bytes are looked for.
    """
    assert 1 <= stages <= len(costs) == len(crossing) + 1
    rates = list(speeds) or [1.0] * stages
    times, low = levelled(costs, rates)
    over = np.array([0.0, *crossing, 0.0])  # of a cut before i
    high = low * (1 + margin)
    fewest = bytes_of(times, over, high)[-1][-1]
    if bytes_of(times, over, low)[-1][-1] <= fewest:
        high = low
    for _ in range(STEPS // 2):
        middle = (low + high) / 2
        if bytes_of(times, over, middle)[-1][-1] <= fewest:
            high = middle
        else:
            low = middle
    return traced_back(bytes_of(times, over, high), [first_starts(ends, high) for ends in times])


def levelled(costs: Sequence[float], speeds: Sequence[float]) -> tuple[list[Floats], float]:
    """The times at which costs end on each stage, none counted above the slowest stage of the most even cut of these,
    and that stage's time."""
    low, high = 0.0, sum(costs) / min(speeds)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(ends_of(costs, speeds, middle), middle) else (middle, high)
    return [np.array(ends) for ends in ends_of(costs, speeds, high)], high


def ends_of(costs: Sequence[float], speeds: Sequence[float], most: float) -> list[list[float]]:
    """When each cost ends on each stage, if it runs them all, a cost taking at most `most`."""
    found = {speed: [0.0, *accumulate(min(cost / speed, most) for cost in costs)] for speed in set(speeds)}
    return [found[speed] for speed in speeds]


def fits(times: Sequence[list[float]], limit: float) -> bool:
    """Whether stages of at most `limit` hold everything: each takes as much as it can."""
    at = 0
    for ends in times:
        at = bisect_right(ends, ends[at] + limit * (1 + ROUNDING)) - 1
    return at == len(times[0]) - 1


def first_starts(ends: Floats, limit: float) -> npt.NDArray[np.int64]:
    """The first start, by end, of a stage that is no larger than the limit."""
    return np.searchsorted(ends, ends - limit * (1 + ROUNDING), side="left")


def bytes_of(times: Sequence[Floats], over: Floats, limit: float) -> list[Floats]:
    """[k][j]: the fewest bytes over the cuts of k stages that end before j, infinite where there are none."""
    fewest = np.full(len(over), np.inf)
    fewest[0] = 0.0
    table = [fewest]
    for ends in times:
        starts = first_starts(ends, limit)
        fewest = np.full(len(ends), np.inf)
        fewest[1:] = least_between(table[-1], starts[1:]) + over[1:]
        table.append(fewest)
    return table


def least_between(values: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """The least of values[starts[j] : j + 1] for each j, from the least of all windows of 1, 2, 4, ... values."""
    stops = np.arange(1, len(starts) + 1)
    level = np.frexp(stops - starts)[1] - 1  # of the longest window that fits twice
    found = np.empty(len(starts))
    window = values
    for power in range(int(level.max()) + 1):
        here = level == power
        found[here] = np.minimum(window[starts[here]], window[stops[here] - 2**power])
        window = np.minimum(window[: -(2**power)], window[2**power :])
    return found


def traced_back(table: list[Floats], starts: Sequence[npt.NDArray[np.int64]]) -> list[int]:
    """starts: of each stage, for each end the first start."""
    ends = [len(table[0]) - 1]
    for before, first in zip(table[-2:0:-1], starts[:0:-1], strict=True):
        start, end = int(first[ends[-1]]), ends[-1]
        ends.append(start + int(np.argmin(before[start:end])))
    return ends[::-1]
