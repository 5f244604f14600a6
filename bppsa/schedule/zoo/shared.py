"""What several entries of the zoo share: a placement w, orders n, a limit of micro-batches in flight, names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import Job, JobPlace


def stage_each(s: int, b: int, d: str) -> JobPlace:
    """A worker for each stage, which owns it."""
    return s, s


def forward_first(s: int, b: int, d: str) -> Any:
    """Breadth first: all forwards before any backward, and a stage's micro-batches one after the other. The one order
    in which looped pipelines keep their latency for every B and G."""
    return (d != "F", s if d == "F" else -s, b)


def backward_first(s: int, b: int, d: str) -> Any:
    return (d == "F", b, s)


def in_flight(limit: Callable[[int], int], freed_by: str = "B") -> Callable[[int, int, str], Sequence[Job]]:
    """pred: at most limit(s) micro-batches of stage s between the start of their F and the end of their B (or W)."""

    def pred(s: int, b: int, d: str) -> Sequence[Job]:
        before = b - limit(s)
        return [(s, before, freed_by)] if d == "F" and before >= 0 else ()

    return pred


def call(name: str, words: Mapping[str, str] | None = None, **counts: int | None) -> str:
    """`lpp(G=4)`: what is None was left out. Raises ScheduleError for what is no count."""
    given = {key: value for key, value in counts.items() if value is not None}
    for key, value in given.items():
        if not (isinstance(value, Integral) and value >= 1):
            raise ScheduleError(f"{name} has {key}={value!r}, and needs at least 1")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in {**given, **(words or {})}.items())})"
