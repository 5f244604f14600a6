"""When each job of a schedule runs: a heap event loop over the job graph, and what jobs cost."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from numbers import Real
from typing import Any

from bppsa.common.process.collector import collector_paused
from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph import spec
from bppsa.schedule.job_graph.answers import no_cost
from bppsa.schedule.job_graph.graph import NOWHERE, JobGraph, Price, Prices, build_graph, numbered
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.recompute import Recompute, recompute_of
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import JOBS, Units

# A number for all stages, one number a stage, or a function of (s, b). Integers and fractions keep times exact.
Number = float | Fraction
Cost = Number | Sequence[Number] | Callable[[int, int], Number]

MOST_TOLD = 16  # of jobs that wait for each other, in an error


@collector_paused()
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
    weight_sizes: Sequence[Number] | Number = 1,
    activation_time: Cost = 0,
    gradient_time: Cost = 0,
    weight_time: Cost = 0,
    recompute: Recompute | bool | str | None = None,
    units: Units = JOBS,
) -> Timeline:
    """Run a schedule for S stages, B micro-batches and W workers on paper, and return its timeline.

    Each cost is a number, a list with a number for each stage, or a function of (s, b). Integers and fractions keep
    times exact. What workers send takes no time by default, as in the papers.

    Args:
        schedule: an entry of the zoo, a Schedule, or a function of (S, B, W) that builds one.
        S: stages.
        B: micro-batches.
        W: workers; None: as many as the schedule needs.
        forward: what a job of direction F takes.
        backward: what a job of direction B takes; where the backward is split, the gradient of the input.
        weight: what a job of direction W takes.
        costs: the same for other directions, such as those of `blelloch`.
        activation_sizes: what one micro-batch's activations of a stage take.
        weight_sizes: what the weights of a stage take.
        activation_time: what it takes to bring a stage's input from another worker: the job waits, its worker does not.
        gradient_time: the same for the gradient of its output.
        weight_time: what it takes to fetch a stage's weights from their owner: added to each such F and B job.
        recompute: a `Recompute`, what runs again before each backward and what is held until then; True or "full" runs
            all of the forward again and counts what it keeps as nothing.
        units: in what these count, for tables and diagrams, such as `Units(time="ms", memory="MB")`.

    Raises:
        ScheduleError: the schedule cannot run: a worker out of range, weights that nobody owns, jobs that wait for each
            other in a cycle, or a strict order in which all workers wait (a ValueError).
    """
    bound = bound_to(schedule, S, B, W)
    jobs = numbered(bound, S, B)
    table = {spec.F: forward, spec.B: backward, spec.W: weight, **(costs or {})}
    by_direction: dict[str, Price] = {
        d: per_stage(f"the cost of {d}", table.get(d, table.get(d[0], 1)), jobs.S) for d in jobs.directions
    }
    again = recompute_of(recompute)
    kept = None
    if again is not None:
        check_recomputes(jobs.directions)
        kept = per_stage("kept", again.kept, jobs.S)
        runs_again = per_stage("again", again.again, jobs.S)
        once = per_stage("forward", table[spec.F], jobs.S)
        if spec.B in by_direction:
            by_direction[spec.B] = and_again(by_direction[spec.B], runs_again, once)
    prices = Prices(
        by_direction,
        hidden_or("activation_time", activation_time, jobs.S),
        hidden_or("gradient_time", gradient_time, jobs.S),
        hidden_or("weight_time", weight_time, jobs.S),
    )
    graph = build_graph(bound, jobs, W, prices)
    start, order, finished = run(graph)
    end = [begin + took for begin, took in zip(start, graph.duration, strict=False)]  # behind the jobs stand transfers
    activation = per_stage("activation_sizes", activation_sizes, jobs.S)
    weights = per_stage("weight_sizes", weight_sizes, jobs.S)
    return Timeline(graph, start, end, activation, weights, order, finished, units, kept)


def per_stage(name: str, cost: Cost, S: int) -> Callable[[int, int], Number]:
    """A cost in any of its forms as a function of (s, b). Raises ScheduleError where it is none of them."""
    if callable(cost):
        return cost
    by_stage: list[Any] = list(cost) if isinstance(cost, Iterable) and not isinstance(cost, str) else [cost] * S
    if len(by_stage) != S:
        raise ScheduleError(f"{name} has {len(by_stage)} numbers for S={S} stages")
    for s in no_cost(by_stage):
        raise ScheduleError(f"{name} of stage {s} is {by_stage[s]!r}, and has to be a finite number from 0 on")
    return lambda s, b: by_stage[s]


def and_again(backward: Price, again: Price, forward: Price) -> Price:
    """What a backward takes behind the share `again` of its forward."""
    return lambda s, b: backward(s, b) + again(s, b) * forward(s, b)


def check_recomputes(directions: Iterable[str]) -> None:
    """Raises ScheduleError where others than F, B and W need what a forward keeps."""
    if not {*directions} <= {*spec.SPLIT}:
        raise ScheduleError(
            "recompute= is of schedules with a forward and a backward of each stage along a chain; leave it out"
        )


def hidden_or(name: str, cost: Cost, S: int) -> Callable[[int, int], Any] | None:
    return None if isinstance(cost, Real) and not cost else per_stage(name, cost, S)


def run(graph: JobGraph) -> tuple[list[Any], list[int], list[int]]:
    """Start of each job, jobs in the order of their starts, and in that of their ends.

    At each time at which something ends, first all that ends is taken note of, then each free line starts the best of
    its ready jobs. That is the paper's recursion (its section on latency from w and n), with each step a logarithm.
    """
    # Read in no order, and far faster where the numbers lie together: a list holds pointers to them.
    line, rank, waiting = (array("q", numbers) for numbers in (graph.line, graph.rank, graph.waiting))
    duration, successors = graph.duration, graph.successors
    N, pending = len(graph.jobs), graph.schedule.policy == "pending"
    by_rank = array("q", sorted(range(N), key=rank.__getitem__))
    ready: list[list[Any]] = [[] for _ in range(graph.workers * graph.lanes)]  # heaps
    free = [True] * len(ready)
    start: list[Any] = [None] * N
    order: list[int] = []
    finished: list[int] = []
    times: list[Any] = [0]  # a heap
    ending: dict[Any, list[int]] = {0: []}  # time -> what ends then
    arrived = [node for node, count in enumerate(waiting) if not count]
    while times:
        now = heappop(times)
        changed = []  # lines that may start a job
        for node in ending.pop(now):
            if node < N:
                finished.append(node)
                free[line[node]] = True
                changed.append(line[node])
            for q in successors[node]:
                waiting[q] -= 1
                if not waiting[q]:
                    arrived.append(q)
        begun = []
        for node in arrived:
            at = line[node]
            if at == NOWHERE:
                begun.append(node)
            else:
                heappush(ready[at], (now, rank[node]) if pending else rank[node])
                changed.append(at)
        arrived = []
        for at in changed:
            if free[at] and ready[at]:
                first = heappop(ready[at])
                node = by_rank[first[1] if pending else first]
                free[at] = False
                start[node] = now
                order.append(node)
                begun.append(node)
        for node in begun:
            end = now + duration[node]
            if end in ending:
                ending[end].append(node)
            else:
                ending[end] = [node]
                heappush(times, end)
    if len(finished) < N:
        refuse(graph, finished)
    return start, order, finished


def refuse(graph: JobGraph, done: Iterable[int]) -> None:
    """Says why the other jobs can never start: a cycle, or else the heads of a strict order."""
    before: dict[int, list[int]] = {number: [] for number in sorted(set(range(len(graph.jobs))).difference(done))}
    for p, q in graph.edges():
        if p in before and q in before:
            before[q].append(p)

    def name(number: int) -> str:
        return f"{graph.jobs[number]} of worker {graph.worker[number]}"

    def waits(pairs: Iterable[tuple[int, int]]) -> str:
        told = [f"{name(q)} waits for {name(p)}" for q, p in pairs]
        more = [f"and {len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
        return ", ".join(told[:MOST_TOLD] + more)

    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = waits((q, p) for q, p in pairwise(reversed(error.args[1])))
        raise ScheduleError(f"jobs wait in a cycle: {cycle}; look at pred and inputs") from None
    heads = [next((number for number in numbers if number in before), None) for numbers in graph.lists()]
    stuck = waits((head, before[head][0]) for head in heads if head is not None)
    raise ScheduleError(f"the strict order is a deadlock, {len(before)} jobs never start: {stuck}; look at n")
