"""When each job of a schedule runs: a heap event loop over the job graph, and what jobs cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule import spec
from bppsa.schedule.graph import NOWHERE, Graph, build_graph, numbered
from bppsa.schedule.jobs import Grid, Listed
from bppsa.schedule.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.timeline import Timeline

# A number for all stages, one number a stage, or a function of (s, b). Integers and fractions keep times exact.
Cost = float | Sequence[float] | Callable[[int, int], float]


def simulate(
    schedule: Schedule | Recipe | Build,
    *,
    S: int,
    B: int,
    W: int | None = None,
    forward: Cost = 1,
    backward: Cost = 1,
    weight: Cost = 1,
    costs: Mapping[str, Cost] | None = None,
    activation_sizes: Cost = 1,
    weight_sizes: Sequence[float] | float = 1,
    activation_time: Cost = 0,
    gradient_time: Cost = 0,
    weight_time: Cost = 0,
) -> Timeline:
    """Runs a schedule for S stages, B micro-batches and W workers (None: as many as it needs) on paper.

    forward, backward, weight: what a job of direction F, B, W takes; where the backward is split, `backward` is the
    gradient of the input. costs: the same for other directions, such as those of `blelloch`.
    activation_sizes, weight_sizes: what one micro-batch's activations, and the weights, of a stage take.
    activation_time, gradient_time: what it takes to bring a stage's input activation, or the gradient of its output,
    from another worker: the job waits, its worker does not. weight_time: what it takes to fetch a stage's weights from
    their owner: added to each such F and B job. All three are hidden by default, as in the papers.
    Each of these is a number, a list with a number for each stage, or a function of (s, b).

    Raises ScheduleError where the schedule cannot run: a worker out of range, weights that nobody owns, jobs that wait
    for each other in a cycle, or a strict order in which all workers wait.
    """
    bound = bound_to(schedule, S, B, W)
    jobs = numbered(bound, S, B)
    table = {spec.F: forward, spec.B: backward, spec.W: weight, **(costs or {})}
    price = {d: per_stage(f"the cost of {d}", table.get(d, table.get(d[0], 1)), jobs.S) for d in jobs.directions}
    duration = [price[d](s, b) for s, b, d in jobs]
    if min(duration) < 0:
        raise ScheduleError(f"job {jobs[duration.index(min(duration))]} takes {min(duration)}")
    graph = build_graph(bound, jobs, W, duration, transfers(jobs, activation_time, gradient_time))
    if weight_time != 0:
        fetch = per_stage("weight_time", weight_time, jobs.S)
        for number, (s, b, d) in enumerate(jobs):
            if d != spec.W and graph.owner[number] != graph.worker[number]:
                duration[number] += fetch(s, b)
    start, order, finished = run(graph)
    end = [begin + took for begin, took in zip(start, duration, strict=False)]  # behind the jobs stand transfers
    activation = per_stage("activation_sizes", activation_sizes, jobs.S)
    weights = per_stage("weight_sizes", weight_sizes, jobs.S)
    return Timeline(graph, start, end, activation, weights, order, finished)


def transfers(jobs: Grid | Listed, activation_time: Cost, gradient_time: Cost) -> Callable[[int, int], Any] | None:
    """How long the data of an edge takes to come from another worker; None where all of it is hidden."""
    if activation_time == 0 and gradient_time == 0:
        return None
    activation = per_stage("activation_time", activation_time, jobs.S)
    gradient = per_stage("gradient_time", gradient_time, jobs.S)

    def transfer(p: int, q: int) -> Any:
        s, b, d = jobs[q]
        return activation(s, b) if d == spec.F else gradient(s, b)

    return transfer


def per_stage(name: str, cost: Cost, S: int) -> Callable[[int, int], float]:
    """A cost in any of its forms as a function of (s, b)."""
    if callable(cost):
        return cost
    if isinstance(cost, Sequence):
        if len(cost) != S:
            raise ScheduleError(f"{name} has {len(cost)} numbers for S={S} stages")
        return lambda s, b: cost[s]
    return lambda s, b: cost


def run(graph: Graph) -> tuple[list[Any], list[int], list[int]]:
    """Start of each job, jobs in the order of their starts, and in that of their ends.

    At each time at which something ends, first all that ends is taken note of, then each free line starts the best of
    its ready jobs. That is the paper's recursion (its section on latency from w and n), with each step a logarithm.
    """
    line, rank, duration, successors = graph.line, graph.rank, graph.duration, graph.successors
    waiting = list(graph.waiting)
    total, N = len(line), len(graph.jobs)
    by_rank = [0] * N
    for number, place in enumerate(rank):
        by_rank[place] = number
    pending = graph.schedule.policy == "pending"
    ready: list[list[Any]] = [[] for _ in range(graph.workers * graph.lanes)]
    free = [True] * len(ready)
    start: list[Any] = [None] * N
    order: list[int] = []
    finished: list[int] = []
    times: list[Any] = [0]
    ending: dict[Any, list[int]] = {0: []}  # time -> what ends then
    arrived = [number for number in range(total) if not waiting[number]]
    while times:
        now = heappop(times)
        touched = []
        for node in ending.pop(now):
            if node < N:
                finished.append(node)
                free[line[node]] = True
                touched.append(line[node])
            for q in successors[node]:
                waiting[q] -= 1
                if not waiting[q]:
                    arrived.append(q)
        for node in arrived:
            at = line[node]
            if at == NOWHERE:
                end = now + duration[node]
                if end in ending:
                    ending[end].append(node)
                else:
                    ending[end] = [node]
                    heappush(times, end)
            else:
                heappush(ready[at], (now, rank[node]) if pending else rank[node])
                touched.append(at)
        arrived.clear()
        for at in touched:
            if free[at] and ready[at]:
                first = heappop(ready[at])
                node = by_rank[first[1] if pending else first]
                free[at] = False
                start[node] = now
                order.append(node)
                end = now + duration[node]
                if end in ending:
                    ending[end].append(node)
                else:
                    ending[end] = [node]
                    heappush(times, end)
    if len(finished) < N:
        refuse(graph, finished)
    return start, order, finished


def refuse(graph: Graph, done: Iterable[int]) -> None:
    """Says why the other jobs can never start: a cycle, or else the heads of a strict order."""
    before: dict[int, list[int]] = {number: [] for number in sorted(set(range(len(graph.jobs))).difference(done))}
    for p, q in graph.edges():
        if p in before and q in before:
            before[q].append(p)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = " before ".join(str(graph.jobs[number]) for number in error.args[1])
        raise ScheduleError(f"jobs wait for each other in a cycle: {cycle}; look at pred and inputs") from None
    stuck = []
    for numbers in graph.lists():
        head = next((number for number in numbers if number in before), None)
        if head is not None:
            source = before[head][0]
            stuck.append(
                f"worker {graph.worker[head]} at {graph.jobs[head]}, "
                f"which waits for {graph.jobs[source]} of worker {graph.worker[source]}"
            )
    raise ScheduleError(
        f"the strict order is a deadlock; {len(before)} jobs never start: {'; '.join(stuck)}; look at n"
    )
