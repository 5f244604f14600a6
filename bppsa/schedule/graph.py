"""A schedule's jobs as a graph of numbers: what the event loop runs over.

Jobs are nodes 0 to N - 1. A transfer that is not hidden is a node after them, which runs on no worker. A strict order
is edges between neighbours of a worker's list. So the loop knows no policy but the order in which it takes ready jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.jobs import Grid, Listed
from bppsa.schedule.spec import B, F, Job, Schedule, W

NOWHERE = -1  # the line of a transfer


@dataclass(frozen=True)
class Graph:
    """N jobs, and transfers behind them. line = worker * lanes + lane: what runs one job at a time."""

    schedule: Schedule
    jobs: Grid | Listed
    workers: int
    lanes: int
    owner: list[int]  # [N]
    worker: list[int]  # [N]
    line: list[int]  # [N + transfers]; NOWHERE for a transfer
    rank: list[int]  # [N]: place in the order of n
    duration: list[Any]  # [N + transfers]
    successors: list[list[int]]  # [N + transfers]
    waiting: list[int]  # [N + transfers]: predecessors

    def inputs(self) -> Iterator[tuple[int, int]]:
        """Edges (p, q) along which data goes."""
        return input_edges(self.schedule, self.jobs)

    def edges(self) -> Iterator[tuple[int, int]]:
        """Edges (p, q) of all kinds but a strict order's: q starts after p."""
        yield from input_edges(self.schedule, self.jobs)
        yield from order_edges(self.schedule, self.jobs)

    def lists(self) -> list[list[int]]:
        """Jobs of each line in the order of n."""
        found: list[list[int]] = [[] for _ in range(self.workers * self.lanes)]
        for job in sorted(range(len(self.jobs)), key=self.rank.__getitem__):
            found[self.line[job]].append(job)
        return found


def build_graph(
    schedule: Schedule,
    jobs: Grid | Listed,
    workers: int | None,
    duration: list[Any],
    transfer: Callable[[int, int], Any] | None,
) -> Graph:
    """duration: of each job. transfer(p, q): how long the data of an edge between two workers takes; None: hidden."""
    owner, worker, workers = places(schedule, jobs, workers)
    lanes, line = lines(schedule, jobs, worker)
    graph = Graph(schedule, jobs, workers, lanes, owner, worker, line, ranks(schedule, jobs), duration, [], [])
    graph.successors.extend([] for _ in jobs)
    graph.waiting.extend([0] * len(jobs))
    add_inputs(graph, transfer)
    add(graph, order_edges(schedule, jobs))
    if schedule.policy == "strict":
        add(graph, (pair for numbers in graph.lists() for pair in pairwise(numbers)))
    return graph


def numbered(schedule: Schedule, S: int, B: int) -> Grid | Listed:
    if schedule.jobs is None:
        return Grid(S, B, schedule.directions)
    jobs = Listed(schedule.jobs)
    if len(jobs.numbers) < len(jobs):
        raise ScheduleError("the schedule lists a job twice")
    return jobs


def places(schedule: Schedule, jobs: Grid | Listed, workers: int | None) -> tuple[list[int], list[int], int]:
    """Owner and worker of each job, and the number of workers, of which both are."""
    w = schedule.w
    try:
        found = [w(s, b, d) for s, b, d in jobs]
        owner, worker = [place[0] for place in found], [place[1] for place in found]
    except (TypeError, IndexError) as error:
        raise ScheduleError(f"w(s, b, d) has to give (owner, worker), two ints: {error}") from error
    nobody = next((number for number, of in enumerate(owner) if of is None), None)
    if nobody is not None:
        raise ScheduleError(f"job {jobs[nobody]}: the weights of stage {jobs[nobody][0]} are owned by nobody")
    if workers is None:
        workers = schedule.W or 1 + max(max(owner), max(worker))
    if min(worker) < 0 or max(worker) >= workers:
        number = next(number for number, at in enumerate(worker) if not 0 <= at < workers)
        raise ScheduleError(f"job {jobs[number]} is on worker {worker[number]}, and there are W={workers} workers")
    if min(owner) < 0 or max(owner) >= workers:
        number = next(number for number, at in enumerate(owner) if not 0 <= at < workers)
        raise ScheduleError(
            f"job {jobs[number]}: the weights of stage {jobs[number][0]} are owned by nobody: "
            f"their owner is worker {owner[number]}, and there are W={workers} workers"
        )
    return owner, worker, workers


def lines(schedule: Schedule, jobs: Grid | Listed, worker: list[int]) -> tuple[int, list[int]]:
    """How many lanes a worker has, and the line of each job."""
    if schedule.lane is None:
        return 1, list(worker)
    lane = [schedule.lane(s, b, d) for s, b, d in jobs]
    lanes = 1 + max(lane)
    return lanes, [at * lanes + of for at, of in zip(worker, lane, strict=True)]


def ranks(schedule: Schedule, jobs: Grid | Listed) -> list[int]:
    if schedule.n is None:
        return list(range(len(jobs)))
    n = schedule.n
    key = [n(s, b, d) for s, b, d in jobs]
    rank = [0] * len(key)
    for place, number in enumerate(sorted(range(len(key)), key=key.__getitem__)):
        rank[number] = place
    return rank


def add(graph: Graph, edges: Iterable[tuple[int, int]]) -> None:
    successors, waiting = graph.successors, graph.waiting
    for p, q in edges:
        successors[p].append(q)
        waiting[q] += 1


def add_inputs(graph: Graph, transfer: Callable[[int, int], Any] | None) -> None:
    if transfer is None:
        add(graph, graph.inputs())
        return
    for p, q in list(graph.inputs()):
        time = transfer(p, q) if graph.worker[p] != graph.worker[q] else 0
        if not time:
            add(graph, [(p, q)])
            continue
        node = len(graph.line)
        graph.line.append(NOWHERE)
        graph.duration.append(time)
        graph.successors.append([])
        graph.waiting.append(0)
        add(graph, [(p, node), (node, q)])


def input_edges(schedule: Schedule, jobs: Grid | Listed) -> Iterator[tuple[int, int]]:
    if schedule.inputs is not None:
        return named_edges("inputs", schedule.inputs, jobs)
    if isinstance(jobs, Listed):
        return named_edges("inputs", chain_inputs(jobs), jobs)
    return chain_edges(jobs)


def order_edges(schedule: Schedule, jobs: Grid | Listed) -> Iterator[tuple[int, int]]:
    return iter(()) if schedule.pred is None else named_edges("pred", schedule.pred, jobs)


def chain_edges(grid: Grid) -> Iterator[tuple[int, int]]:
    """Back-propagation along a chain, on a grid."""
    S = grid.S
    rows = range(0, S * grid.B, S)
    forward, backward, weight = (grid.base.get(d) for d in (F, B, W))
    if forward is not None:
        yield from ((q - 1, q) for row in rows for q in range(forward + row + 1, forward + row + S))
    if backward is not None:
        if forward is not None:
            yield from ((forward + row + S - 1, backward + row + S - 1) for row in rows)
        yield from ((q + 1, q) for row in rows for q in range(backward + row, backward + row + S - 1))
    if weight is not None and backward is not None:
        yield from zip(range(backward, backward + S * grid.B), range(weight, weight + S * grid.B), strict=True)


def chain_inputs(jobs: Listed) -> Callable[[int, int, str], list[Job]]:
    """The same, among listed jobs: the first of the possible sources that is there."""

    def inputs(s: int, b: int, d: str) -> list[Job]:
        sources: dict[str, list[Job]] = {F: [(s - 1, b, F)], B: [(s + 1, b, B), (s, b, F)], W: [(s, b, B)]}
        return [job for job in sources.get(d, []) if job in jobs][:1]

    return inputs


def named_edges(
    role: str, function: Callable[[int, int, str], Iterable[Job]], jobs: Grid | Listed
) -> Iterator[tuple[int, int]]:
    """The edges that a function over jobs names."""
    number = jobs.number
    for q, (s, b, d) in enumerate(jobs):
        for job in function(s, b, d):
            try:
                p = number(job)
            except KeyError:
                raise ScheduleError(f"{role}{s, b, d} names {job}, and there is no such job") from None
            yield p, q
