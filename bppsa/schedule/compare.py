"""Schedules side by side: what each takes of time, memory and traffic for one net on one machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from bppsa.errors import ScheduleError
from bppsa.schedule.simulator import Cost, per_stage, simulate
from bppsa.schedule.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.spec import W as WEIGHT
from bppsa.schedule.timeline import Timeline


@dataclass(frozen=True)
class Row:
    """Of one schedule. Memory and receives are those of the worker that has most of them; memory is of activations and
    weights, see `Timeline.peak_memory`."""

    schedule: str
    workers: int
    makespan: Any
    bubble: float
    memory: Any
    activations: Any
    weights: Any
    activation_receives: int
    gradient_receives: int
    weight_receives: int


@dataclass(frozen=True)
class Comparison:
    """rows: in the order asked for. refused: (schedule, why) of those that do not exist for these numbers."""

    rows: tuple[Row, ...]
    refused: tuple[tuple[str, str], ...]
    split: bool  # whether all backwards count as an input's and a weights' gradient

    def __str__(self) -> str:
        note = ["a B job that is not split takes backward + weight"] if self.split else []
        return "\n".join([table(self.rows), *(f"{name}: {why}" for name, why in self.refused), *note])


def compare(
    schedules: Iterable[Schedule | Recipe | Build],
    *,
    S: int,
    B: int,
    W: int | None = None,
    backward: Cost = 1,
    weight: Cost = 1,
    **costs: Any,
) -> Comparison:
    """Simulates each schedule, prints a table and returns it. The keywords are those of `simulate`.

    Where one of the schedules splits the backward, the B jobs of the others take backward + weight, so that all do the
    same work. Raises ScheduleError where none of the schedules can run.
    """
    rows, refused, bounds = [], [], []
    for schedule in schedules:
        try:
            bounds.append((name_of(schedule), bound_to(schedule, S, B, W)))
        except ScheduleError as error:
            refused.append((name_of(schedule), str(error)))
    split = any(WEIGHT in bound.directions for _, bound in bounds)
    for name, bound in bounds:
        cost = {"backward": of_backward(bound, backward, weight, S, split), "weight": weight, **costs}
        try:
            rows.append(row(name, simulate(bound, S=S, B=B, W=W, **cost)))
        except ScheduleError as error:
            refused.append((name, str(error)))
    if not rows:
        raise ScheduleError(f"no schedule can run: {'; '.join(f'{name}: {why}' for name, why in refused)}")
    comparison = Comparison(tuple(rows), tuple(refused), split)
    print(comparison)
    return comparison


def name_of(schedule: Schedule | Recipe | Build) -> str:
    if isinstance(schedule, Recipe):
        return schedule.name
    return str(getattr(schedule, "__name__", type(schedule).__name__))


def of_backward(bound: Schedule, backward: Cost, weight: Cost, S: int, split: bool) -> Cost:
    """What a B job takes where the work of a whole backward is backward + weight (`split`)."""
    if not split or WEIGHT in bound.directions:
        return backward
    inputs, weights = per_stage("backward", backward, S), per_stage("weight", weight, S)
    return lambda s, b: inputs(s, b) + weights(s, b)


def row(name: str, timeline: Timeline) -> Row:
    return Row(
        name,
        timeline.W,
        timeline.makespan,
        timeline.bubble,
        max(timeline.peak_memory),
        max(timeline.peak_activations),
        max(timeline.weight_storage),
        max(timeline.activation_receives),
        max(timeline.gradient_receives),
        max(timeline.weight_receives),
    )


def table(rows: Sequence[Any]) -> str:
    """Dataclasses as lines of text, numbers to the right."""
    heads = [field.name.replace("_", " ") for field in fields(rows[0])]
    cells = [heads, *([shown(value) for value in astuple(row)] for row in rows)]
    widths = [max(map(len, of)) for of in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
