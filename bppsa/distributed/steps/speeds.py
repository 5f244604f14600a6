"""Workers of unequal speed: what that makes of stages, and of what their jobs cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from bppsa.distributed.steps.member import cores
from bppsa.errors import StrategyError
from bppsa.schedule.job_graph.spec import F, Schedule


def workers_of(schedule: Schedule, S: int, B: int) -> int:
    """How many workers the schedule has."""
    return schedule.W or 1 + max(max(schedule.w(s, b, F)) for s in range(S) for b in range(B))


def stage_speeds(schedule: Schedule, S: int, B: int, speeds: Sequence[float]) -> tuple[float, ...]:
    """Each stage's speed: the mean over its micro-batches, by time. Raises StrategyError where there are not as many
    speeds as workers."""
    if not speeds:
        return ()
    workers = workers_of(schedule, S, B)
    if len(speeds) != workers:
        raise StrategyError(f"speeds= has {len(speeds)} numbers, and the schedule {workers} workers; give one for each")
    return tuple(B / sum(1 / speeds[schedule.w(s, b, F)[1]] for b in range(B)) for s in range(S))


def at_speeds(
    costs: Sequence[float], d: str, schedule: Schedule, speeds: Sequence[float]
) -> Callable[[int, int], float]:
    """What jobs of direction d cost, of what they cost on a worker of speed 1."""
    return lambda s, b: costs[s] / speeds[schedule.w(s, b, d)[1]]


@contextmanager
def threads_of_one(workers: int) -> Iterator[None]:
    """Gives torch as many threads as one of the workers of this machine has in a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)
