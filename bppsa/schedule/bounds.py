"""How busy workers can be that hold no more activations than they do."""

from __future__ import annotations

import math
from itertools import accumulate, chain
from operator import mul, neg
from typing import TYPE_CHECKING

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.jobs import Grid
from bppsa.schedule.job_graph.spec import B, F, W

if TYPE_CHECKING:
    from bppsa.schedule.timeline import Timeline


def bound(timeline: Timeline) -> float:
    """Return the utilisation that no schedule of the same jobs and the same peaks of activations exceeds.

    It is 2 * mean peak / (S + 1) where stages are alike.

    A job of stage k keeps the activations of stages 0 to k of its micro-batch waiting, or, where it is a W job, those
    of k. So the memory-time of a step is at least the sum of these over all jobs, and at most makespan * sum of peaks.
    The theorem of Unifying Parallelization Schemes has M / S with M the largest peak: its proof counts the forward and
    the backward of a stage as two steps, its throughput as one, so it is off by two and does not hold.

    Raises:
        ScheduleError: the jobs are not forwards and backwards along a chain (a ValueError).
    """
    jobs = timeline.jobs
    if timeline.graph.schedule.inputs is not None or not isinstance(jobs, Grid) or not {F, B} <= {*jobs.directions}:
        raise ScheduleError("the bound is of forward and backward jobs along a chain of stages")
    kept_size = timeline.kept_size or timeline.activation_size
    sizes = [[timeline.activation_size(s, b) for s in range(jobs.S)] for b in range(jobs.B)]
    kept = [[kept_size(s, b) for s in range(jobs.S)] for b in range(jobs.B)]
    alone = list(chain(*sizes))  # by b * S + s, as the grid counts
    waiting = list(chain(*map(accumulate, kept)))
    below = {F: waiting, B: list(map(sum, zip(waiting, alone, map(neg, chain(*kept)), strict=True))), W: alone}
    memory_time = 0
    for d, first in jobs.first.items():
        took = timeline.durations[first : first + len(alone)]
        memory_time += sum(map(mul, took, below[d]))
    capacity = timeline.lanes * timeline.W * memory_time
    return float(sum(timeline.durations) * sum(timeline.peak_activations) / capacity) if capacity else math.inf
