"""What a job waits for: edges (p, q) between job numbers, q after p."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.answers import answers
from bppsa.schedule.job_graph.jobs import Grid, Listed
from bppsa.schedule.job_graph.spec import B, F, Job, Jobs, Schedule, W


def input_edges(schedule: Schedule, jobs: Grid | Listed) -> Iterator[tuple[int, int]]:
    """The edges along which data goes."""
    if schedule.inputs is not None:
        return named("inputs", schedule.inputs, jobs)
    return along_the_chain(jobs) if isinstance(jobs, Grid) else named("inputs", chain_inputs(jobs), jobs)


def order_edges(schedule: Schedule, jobs: Grid | Listed) -> Iterator[tuple[int, int]]:
    """The edges of pred."""
    return iter(()) if schedule.pred is None else named("pred", schedule.pred, jobs)


def named(role: str, function: Jobs, jobs: Grid | Listed) -> Iterator[tuple[int, int]]:
    """Edges from the jobs that a function of a job names. Raises ScheduleError where one is not there."""
    number = jobs.number
    for q, said in enumerate(answers(role, function, jobs)):
        if not said:
            continue
        try:
            named_jobs = iter(said)
        except TypeError:
            raise ScheduleError(f"{role}{jobs[q]} is {said!r}, and has to be a list of jobs (s, b, d)") from None
        for job in named_jobs:
            try:
                p = number(job)
            except (KeyError, ValueError, TypeError):
                raise ScheduleError(
                    f"{role}{jobs[q]} names {job!r}, and there is no such job; it has to be a list of jobs (s, b, d) "
                    f"with s < {jobs.S}, b < {jobs.B} and d of {', '.join(jobs.directions)}"
                ) from None
            yield p, q


def along_the_chain(grid: Grid) -> Iterator[tuple[int, int]]:
    """Back-propagation: F up the stages, B down again, W after its B."""
    S, size = grid.S, grid.S * grid.B
    first = grid.first
    for row in range(0, size, S):
        if F in first:
            up = range(first[F] + row, first[F] + row + S)
            yield from pairwise(up)
        if B in first:
            down = range(first[B] + row + S - 1, first[B] + row - 1, -1)
            if F in first:
                yield up[-1], down[0]
            yield from pairwise(down)
    if W in first and B in first:
        yield from zip(range(first[B], first[B] + size), range(first[W], first[W] + size), strict=True)


def chain_inputs(jobs: Listed) -> Callable[[int, int, str], list[Job]]:
    """The same among listed jobs: the first of the possible sources that is there."""

    def inputs(s: int, b: int, d: str) -> list[Job]:
        sources: dict[str, list[Job]] = {F: [(s - 1, b, F)], B: [(s + 1, b, B), (s, b, F)], W: [(s, b, B)]}
        return [job for job in sources.get(d, []) if job in jobs][:1]

    return inputs
