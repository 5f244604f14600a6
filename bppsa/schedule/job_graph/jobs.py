"""The jobs of a schedule, numbered: inside, a job is an int; outside, the tuple (s, b, d)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat
from operator import index
from typing import TypeVar

from bppsa.schedule.job_graph.spec import Job

T = TypeVar("T")


class Grid:
    """range(S) x range(B) x directions, numbered in the order of d, then b, then s."""

    def __init__(self, S: int, B: int, directions: Sequence[str]) -> None:
        self.S, self.B, self.directions = S, B, tuple(directions)
        self.first = {d: i * S * B for i, d in enumerate(self.directions)}

    def __len__(self) -> int:
        return len(self.directions) * self.S * self.B

    def __iter__(self) -> Iterator[Job]:
        stages = range(self.S)
        return chain.from_iterable(zip(stages, repeat(b), repeat(d)) for d in self.directions for b in range(self.B))

    def __getitem__(self, number: int) -> Job:
        d, rest = divmod(number, self.S * self.B)
        b, s = divmod(rest, self.S)
        return s, b, self.directions[d]

    def number(self, job: Job) -> int:
        """Raises KeyError, ValueError or TypeError where there is no such job."""
        s, b, d = job
        if not (0 <= s < self.S and 0 <= b < self.B):
            raise KeyError(job)
        return self.first[d] + index(b * self.S + s)

    def __contains__(self, job: Job) -> bool:
        s, b, d = job
        return 0 <= s < self.S and 0 <= b < self.B and d in self.first


class Listed:
    """Jobs as the schedule lists them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.S = 1 + max(s for s, _, _ in self.jobs)
        self.B = 1 + max(b for _, b, _ in self.jobs)
        self.directions = tuple(dict.fromkeys(d for _, _, d in self.jobs))

    @cached_property
    def numbers(self) -> dict[Job, int]:
        return {job: number for number, job in enumerate(self.jobs)}

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __getitem__(self, number: int) -> Job:
        return self.jobs[number]

    def number(self, job: Job) -> int:
        """Raises KeyError or TypeError where there is no such job."""
        return self.numbers[job]

    def __contains__(self, job: Job) -> bool:
        return job in self.numbers


class PerJob(Mapping[Job, T]):
    """What is known of each job, by the job: `timeline.start[s, b, d]`."""

    def __init__(self, jobs: Grid | Listed, values: Sequence[T]) -> None:
        self.jobs, self._values = jobs, values

    def __getitem__(self, job: Job) -> T:
        return self._values[self.jobs.number(job)]

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return repr(dict(self))
