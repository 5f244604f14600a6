"""Times of several ways to compute the same, taken in turns so that a busy machine slows all of them alike.

torch.utils.benchmark times one way after the other, and a ratio of two such medians carries whatever changed meanwhile.
Here one sample of each is taken, then the next of each; a ratio is the median of the ratios of neighbours. A sample is
of a loop that is under way: a step that is not counted goes before it, so that none begins with another's caches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Step = Callable[[], tuple[float, ...]]  # runs once; the seconds of each of its phases, e.g. (forward, backward)
Samples = list[tuple[float, ...]]

LEAST_S = 3e-3  # of a sample: a shorter step is run several times, and the sample is the mean
WARM_UP = 2


@dataclass(frozen=True)
class Spread:
    median: float
    low: float  # first quartile
    high: float  # third quartile

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return Spread(*(significant(value) for value in (median, low, high)))


def interleave(steps: Mapping[str, Step], repeats: int) -> dict[str, Samples]:
    """`repeats` samples of each step, A B A B ..., each after a step that is not counted."""
    calls = {}
    for name, step in steps.items():
        seconds = min(sum(step()) for _ in range(WARM_UP))
        calls[name] = max(1, math.ceil(LEAST_S / seconds))
    samples: dict[str, Samples] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            step()
            samples[name].append(mean([step() for _ in range(calls[name])]))
    return samples


def mean(runs: Samples) -> tuple[float, ...]:
    return tuple(statistics.fmean(phase) for phase in zip(*runs, strict=True))


def milliseconds(samples: Samples) -> float:
    return significant(1e3 * statistics.median(map(sum, samples)))


def ratio(peer: Samples, ours: Samples, phase: int | None = None) -> Spread:
    """How many times as long the peer took: of each pair of neighbours, in one phase or in the whole step."""

    def seconds(sample: tuple[float, ...]) -> float:
        return sum(sample) if phase is None else sample[phase]

    return Spread.of([seconds(a) / seconds(b) for a, b in zip(peer, ours, strict=True)])


def significant(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
