"""Schedules side by side: what each takes of time, memory and traffic for one net on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, NamedTuple

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.job_graph.spec import W as WEIGHT
from bppsa.schedule.recompute import Recompute, recompute_of
from bppsa.schedule.simulator import Cost, per_stage, simulate
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import JOBS, Units, shown


@dataclass(frozen=True)
class ComparisonRow:
    """The numbers of one schedule. Memory and receives are those of the worker that has most of them; memory is of
    activations and weights, see `Timeline.peak_memory`; `receives` is of all three kinds together."""

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
    receives: int


class SimulatedRow(NamedTuple):
    row: ComparisonRow
    timeline: Timeline


HEADS = {"bubble": "bubble %"}


@dataclass(frozen=True)
class Comparison:
    """rows: in the order asked for. refused: (schedule, why) of those that do not exist for these numbers."""

    rows: tuple[ComparisonRow, ...]
    refused: tuple[tuple[str, str], ...]
    split: bool  # whether all backwards count as an input's and a weights' gradient
    units: Units = JOBS

    def __str__(self) -> str:
        note = ["a B job that is not split takes backward + weight"] if self.split else []
        refused = (f"{name}: {why}" for name, why in self.refused)
        return "\n".join([table(self.rows, self.units), *refused, *note])


def compare(
    schedules: Iterable[Schedule | Recipe | Build],
    *,
    S: int,
    B: int,
    W: int | None = None,
    backward: Cost = 1,
    weight: Cost = 1,
    units: Units = JOBS,
    **costs: Any,
) -> Comparison:
    """Simulate each schedule, print a table and return it. Other keywords are those of `simulate`.

    Where one of the schedules splits the backward, the B jobs of the others take backward + weight, so that all do the
    same work.

    Raises:
        ScheduleError: none of the schedules can run (a ValueError).
    """
    recipes = [as_recipe(schedule) for schedule in schedules]
    split = any(splits(recipe, S, B, W) for recipe in recipes)
    numbers = {"S": S, "B": B, "W": W, "backward": backward, "weight": weight, "units": units, **costs}
    found = [(recipe.name, row_or_reason(recipe, split=split, **numbers)) for recipe in recipes]
    rows = tuple(of.row for _, of in found if isinstance(of, SimulatedRow))
    refused = tuple((name, why) for name, why in found if isinstance(why, str))
    if not rows:
        raise ScheduleError(f"no schedule can run: {reasons(refused)}")
    comparison = Comparison(rows, refused, split, units)
    print(comparison)
    return comparison


def as_recipe(schedule: Schedule | Recipe | Build) -> Recipe:
    """A recipe with a name: a function's own, or "Schedule" for one that is bound."""
    if isinstance(schedule, Recipe):
        return schedule
    if isinstance(schedule, Schedule):
        return Recipe("Schedule", lambda S, B, W=None: schedule)
    return Recipe(getattr(schedule, "__name__", repr(schedule)), schedule)


def splits(recipe: Recipe, S: int, B: int, W: int | None) -> bool:
    try:
        return WEIGHT in bound_to(recipe, S, B, W).directions
    except ScheduleError:
        return False  # it does not exist for these numbers, which its row will say


def row_or_reason(
    recipe: Recipe,
    *,
    S: int,
    B: int,
    W: int | None,
    split: bool,
    backward: Cost,
    weight: Cost,
    recompute: Recompute | bool | str | None = None,
    **costs: Any,
) -> SimulatedRow | str:
    """What a schedule takes, or why it cannot run. split: the whole of a backward is backward + weight."""
    try:
        bound = bound_to(recipe, S, B, W)
        whole = of_backward(bound, backward, weight, S, split)
        again = recompute_of(recompute)
        timeline = simulate(bound, S=S, B=B, W=W, backward=whole, weight=weight, recompute=again, **costs)
        return SimulatedRow(row(with_recompute(recipe.name, again), timeline), timeline)
    except ScheduleError as error:
        return str(error)


def with_recompute(name: str, recompute: Recompute | None) -> str:
    return name if recompute is None else f"{name} + {recompute.name} recompute"


def reasons(refused: Sequence[tuple[str, str]]) -> str:
    """Why each of them cannot run, or why all cannot where that is one thing."""
    same = {why for _, why in refused}
    if len(same) == 1 < len(refused):
        return same.pop()
    return "; ".join(f"{name}: {why}" for name, why in refused) or "none is given"


def of_backward(bound: Schedule, backward: Cost, weight: Cost, S: int, split: bool) -> Cost:
    """What a B job takes where the work of a whole backward is backward + weight (`split`)."""
    if not split or WEIGHT in bound.directions:
        return backward
    inputs, weights = per_stage("backward", backward, S), per_stage("weight", weight, S)
    return lambda s, b: inputs(s, b) + weights(s, b)


def row(name: str, timeline: Timeline) -> ComparisonRow:
    activations, gradients, weights = received = (
        timeline.activation_receives,
        timeline.gradient_receives,
        timeline.weight_receives,
    )
    return ComparisonRow(
        name,
        timeline.W,
        timeline.makespan,
        timeline.bubble,
        max(timeline.peak_memory),
        max(timeline.peak_activations),
        max(timeline.weight_storage),
        max(activations),
        max(gradients),
        max(weights),
        max(map(sum, zip(*received, strict=True))),
    )


def table(rows: Sequence[ComparisonRow], units: Units) -> str:
    """Rows as lines of text, numbers to the right, and a legend."""
    heads = [HEADS.get(field.name, field.name.replace("_", " ")) for field in fields(ComparisonRow)]
    lines = in_columns(
        [heads, *([shown(value) for value in astuple(replace(row, bubble=round(100 * row.bubble, 6)))] for row in rows)]
    )
    return "\n".join([*lines, units.of_rows()])


def in_columns(lines: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.rjust) -> list[str]:
    """Lines of cells as lines of text, their first cells to the left."""
    first, *widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join([head.ljust(first), *map(justify, cells, widths)]).rstrip() for head, *cells in lines]
