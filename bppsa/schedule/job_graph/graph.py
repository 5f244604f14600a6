"""A schedule's jobs as a graph of numbers: what the event loop runs over.

Jobs are nodes 0 to N - 1. A transfer that is not hidden is a node after them, which runs on no worker. A strict order
is edges between neighbours of a worker's list. So the loop knows no policy but the order in which it takes ready jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import chain, pairwise
from numbers import Integral
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.answers import answers, no_cost, outside
from bppsa.schedule.job_graph.edges import input_edges, order_edges
from bppsa.schedule.job_graph.jobs import Grid, Listed
from bppsa.schedule.job_graph.spec import F, Schedule, W

NOWHERE = -1  # the line of a transfer

Edges = Iterable[tuple[int, int]]
Price = Callable[[int, int], Any]  # of (s, b)


@dataclass(frozen=True)
class Prices:
    """What takes time: a job of each direction, bringing an activation or a gradient from another worker, fetching
    weights from theirs. None: hidden behind other work."""

    job: dict[str, Price]
    activation: Price | None = None
    gradient: Price | None = None
    weights: Price | None = None


@dataclass(frozen=True)
class JobGraph:
    """N jobs, and transfers behind them. line = worker * lanes + lane: what runs one job at a time."""

    schedule: Schedule
    jobs: Grid | Listed
    workers: int
    lanes: int
    owner: list[int]  # [N]
    worker: list[int]  # [N]
    rank: list[int]  # [N]: place in the order of n
    line: list[int]  # [N + transfers]; NOWHERE for a transfer
    duration: list[Any]  # [N + transfers]
    successors: list[list[int]]  # [N + transfers]
    waiting: list[int]  # [N + transfers]: how many predecessors there are
    orders: list[tuple[int, int]]  # edges (p, q) of pred

    def inputs(self) -> Iterator[tuple[int, int]]:
        """Edges (p, q) between jobs along which data goes."""
        return input_edges(self.schedule, self.jobs)

    def edges(self) -> Iterator[tuple[int, int]]:
        """Edges (p, q) between jobs of all kinds but a strict order's: q starts after p."""
        return chain(self.inputs(), self.orders)

    def lists(self) -> list[list[int]]:
        """The jobs of each line in the order of n."""
        return by_line(self.line[: len(self.jobs)], self.rank, self.workers * self.lanes)


def build_graph(schedule: Schedule, jobs: Grid | Listed, W: int | None, prices: Prices) -> JobGraph:
    """Raises ScheduleError where a worker, an owner or a lane is none, or a predecessor is not there."""
    owner, worker, workers = places(schedule, jobs, W)
    lanes, line = lines(schedule, jobs, worker)
    rank, duration = ranks(schedule, jobs), durations(jobs, owner, worker, prices)
    orders = list(order_edges(schedule, jobs))
    after: Edges = orders
    if schedule.policy == "strict":
        after = chain(after, *map(pairwise, by_line(line, rank, workers * lanes)))
    inputs: Edges = input_edges(schedule, jobs)
    if prices.activation or prices.gradient:
        inputs = delayed(inputs, jobs, worker, prices, line, duration)
    successors, waiting = linked(chain(inputs, after), len(line))
    return JobGraph(schedule, jobs, workers, lanes, owner, worker, rank, line, duration, successors, waiting, orders)


def numbered(schedule: Schedule, S: int, B: int) -> Grid | Listed:
    """Raises ScheduleError where the schedule lists what is no job, a job twice, or those of another S or B."""
    if schedule.jobs is None:
        return Grid(S, B, schedule.directions)
    listed = list(schedule.jobs)
    if not listed:
        raise ScheduleError("the schedule lists no job")
    for job in listed:
        if not is_job(job):
            raise ScheduleError(f"the schedule lists {job!r}, which is no job (s, b, d)")
    jobs = Listed(listed)
    if len(jobs.numbers) < len(jobs):
        twice = next(job for at, job in enumerate(listed) if jobs.numbers[job] != at)
        raise ScheduleError(f"the schedule lists a job twice: {twice}")
    cut = S == 1 and schedule.inputs is not None  # one layer, and its stages are what a scan over time makes of it
    if jobs.B != B or not (jobs.S == S or cut):
        raise ScheduleError(f"the schedule lists jobs of S={jobs.S} and B={jobs.B}, and not of S={S} and B={B}")
    return jobs


def is_job(job: Any) -> bool:
    if not (isinstance(job, tuple) and len(job) == 3 and isinstance(job[2], str) and job[2]):
        return False
    return all(isinstance(number, Integral) and int(number) >= 0 for number in job[:2])


def places(schedule: Schedule, jobs: Grid | Listed, W: int | None) -> tuple[list[int], list[int], int]:
    """Owner and worker of each job, and the number of workers, among which both are."""
    found = answers("w", schedule.w, jobs)
    try:
        owner, worker = [owner for owner, _ in found], [worker for _, worker in found]
    except (TypeError, ValueError):
        number = next(i for i, place in enumerate(found) if not (isinstance(place, Sized) and len(place) == 2))
        raise ScheduleError(f"w{jobs[number]} is {found[number]!r}, and has to be (owner, worker)") from None
    workers = W or schedule.W or 1 + max((at for at in chain(owner, worker) if isinstance(at, Integral)), default=0)
    among = f"and there are W={workers} workers, the ints 0 to {workers - 1}" if workers > 0 else "no int of at least 0"
    for number in outside(worker, workers):
        raise ScheduleError(
            f"job {jobs[number]} is on worker {worker[number]!r}, {among}; look at w and W: most schedules of the zoo "
            f"take a worker a stage, and interleaved, lpp and fslpp several stages a worker"
        )
    for number in outside(owner, workers):
        raise ScheduleError(
            f"job {jobs[number]}: the weights of stage {jobs[number][0]} are owned by nobody; w names worker "
            f"{owner[number]!r} as their owner, {among}"
        )
    return owner, worker, workers


def lines(schedule: Schedule, jobs: Grid | Listed, worker: list[int]) -> tuple[int, list[int]]:
    """How many lanes a worker has, and the line of each job."""
    if schedule.lane is None:
        return 1, list(worker)
    lane = answers("lane", schedule.lane, jobs)
    for number in outside(lane, math.inf):
        raise ScheduleError(f"job {jobs[number]} is on lane {lane[number]!r}: lanes are ints from 0 on")
    lanes = 1 + max(lane)
    return lanes, [at * lanes + of for at, of in zip(worker, lane, strict=True)]


def ranks(schedule: Schedule, jobs: Grid | Listed) -> list[int]:
    if schedule.n is None:
        return list(range(len(jobs)))
    key = answers("n", schedule.n, jobs)
    try:
        ordered = sorted(range(len(key)), key=key.__getitem__)
    except TypeError as error:
        number = next((i for i in range(1, len(key)) if type(key[i]) is not type(key[0])), len(key) - 1)
        raise ScheduleError(
            f"n(s, b, d) has to give values that sort: {error}; "
            f"n{jobs[0]} is {key[0]!r}, n{jobs[number]} is {key[number]!r}"
        ) from error
    rank = [0] * len(key)
    for place, number in enumerate(ordered):
        rank[number] = place
    return rank


def durations(jobs: Grid | Listed, owner: list[int], worker: list[int], prices: Prices) -> list[Any]:
    """How long each job takes, with the fetch of its weights where that is not hidden."""
    price, fetch = prices.job, prices.weights
    duration = answers("the cost", lambda s, b, d: price[d](s, b), jobs, takes="(s, b)")
    for number in no_cost(duration):
        raise ScheduleError(f"job {jobs[number]} takes {duration[number]!r}: a cost is a finite number from 0 on")
    if fetch is not None:
        for number, (s, b, d) in enumerate(jobs):
            if d != W and owner[number] != worker[number]:
                duration[number] += fetch(s, b)
    return duration


def delayed(
    edges: Edges, jobs: Grid | Listed, worker: list[int], prices: Prices, line: list[int], duration: list[Any]
) -> Edges:
    """The edges, those between two workers through a transfer, which is added to line and duration."""
    through = []
    for p, q in edges:
        s, b, d = jobs[q]
        price = prices.activation if d == F else prices.gradient
        if worker[p] == worker[q] or price is None:
            through.append((p, q))
        else:
            through += [(p, len(line)), (len(line), q)]
            line.append(NOWHERE)
            duration.append(price(s, b))
    for number in no_cost(duration[len(jobs) :]):
        raise ScheduleError(f"a transfer takes {duration[len(jobs) + number]!r}: a cost is a finite number from 0 on")
    return through


def by_line(line: list[int], rank: list[int], count: int) -> list[list[int]]:
    """The jobs of each of `count` lines in the order of their ranks."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(line)), key=rank.__getitem__):
        found[line[number]].append(number)
    return found


def linked(edges: Edges, nodes: int) -> tuple[list[list[int]], list[int]]:
    """The successors of each node, and how many predecessors it has."""
    successors: list[list[int]] = [[] for _ in range(nodes)]
    waiting = [0] * nodes
    for p, q in edges:
        successors[p].append(q)
        waiting[q] += 1
    return successors, waiting
