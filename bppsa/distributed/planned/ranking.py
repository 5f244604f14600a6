"""Schedules for estimated stages, ranked by what a step takes, and what a worker holds under each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bppsa.distributed.planned.estimates import StageEstimate, WorkerRates, total
from bppsa.errors import ScheduleError
from bppsa.schedule.compare import with_recompute
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule
from bppsa.schedule.recompute import Recompute
from bppsa.schedule.search import Candidate, search
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import BYTES, Units

UNITS = Units(time="ms", memory="bytes")
GIGA = BYTES["GB"]
Schedules = Iterable[Schedule | Recipe | Build]


@dataclass(frozen=True)
class PlannedSchedule:
    """One schedule with what it is predicted to take.

    ms: a step: the timeline's makespan and `sums_ms`, in which gradients of stages that several workers run are added
    after it. Bytes are those of the worker that holds most: all of it is `memory`. stages: how many there are.
    """

    schedule: Recipe
    recompute: Recompute | None
    stages: tuple[StageEstimate, ...]
    timeline: Timeline
    ms: float
    sums_ms: float
    memory: int
    weights: int
    gradients: int
    optimizer: int
    fetched: int
    activations: int

    @property
    def name(self) -> str:
        """Return what it is called in tables."""
        return with_recompute(self.schedule.name, self.recompute)


@dataclass(frozen=True)
class Ranking:
    """fit: best first. large: those that need more memory, least first. refused: name -> why it cannot run."""

    fit: tuple[PlannedSchedule, ...]
    large: tuple[PlannedSchedule, ...]
    refused: Mapping[str, str]


def costs_of(stages: Sequence[StageEstimate], rates: WorkerRates) -> dict[str, Any]:
    """What `simulate` is told, in ms and bytes."""
    return {
        "forward": [stage.forward for stage in stages],
        "backward": [stage.backward for stage in stages],
        "weight": [stage.weight for stage in stages],
        "activation_sizes": [stage.activations for stage in stages],
        "weight_sizes": [stage.weights + stage.gradients + stage.state for stage in stages],
        "activation_time": [rates.sending(stage.received) for stage in stages],
        "gradient_time": [rates.sending(stage.sent) for stage in stages],
        "weight_time": [rates.sending(stage.weights) for stage in stages],
        "units": UNITS,
    }


def ranked(
    cuts: Iterable[Sequence[StageEstimate]],
    *,
    microbatches: int,
    workers: int,
    rates: WorkerRates,
    memory: float | None,
    schedules: Schedules | None,
) -> Ranking:
    """cuts: the model in one or more numbers of stages; each is tried with every schedule, with and without recompute.
    memory: bytes that a worker may hold."""
    found: list[PlannedSchedule] = []
    refused: dict[str, str] = {}
    asked = None if schedules is None else list(schedules)
    for stages in cuts:
        variants = [None, Recompute(kept=[min(stage.received, stage.activations) for stage in stages])]
        costs = costs_of(stages, rates)
        try:
            result = search(len(stages), microbatches, workers, schedules=asked, recompute=variants, **costs)
        except ScheduleError as error:
            refused[f"all, of {len(stages)} stages"] = str(error)
            continue
        for one in result.ranked:
            if one.timeline is None:
                refused[f"{one.recipe.name}, {len(stages)} stages"] = one.lost
            else:
                found.append(planned(one, one.timeline, stages, rates))
    found.sort(key=lambda one: (one.ms, one.memory, one.name, len(one.stages)))
    large = [one for one in found if memory is not None and one.memory > memory]
    fit = [one for one in found if memory is None or one.memory <= memory]
    return Ranking(tuple(fit), tuple(sorted(large, key=lambda one: one.memory)), refused)


def planned(one: Candidate, timeline: Timeline, stages: Sequence[StageEstimate], rates: WorkerRates) -> PlannedSchedule:
    sums = max(map(rates.sending, summed(timeline, stages)))
    held = [held_by(timeline, stages, worker) for worker in range(timeline.W)]
    most = max(held, key=sum)
    return PlannedSchedule(
        one.recipe, one.recompute, tuple(stages), timeline, float(timeline.makespan) + sums, sums, sum(most), *most
    )


def held_by(timeline: Timeline, stages: Sequence[StageEstimate], worker: int) -> tuple[int, int, int, int, int]:
    """Bytes of weights, gradients and optimizer state that it owns, each weight once, of the largest stage (with the
    gradient) that it runs and another owns, and of activations at their peak."""
    owned = {s for (s, _, _), owner in timeline.owner.items() if owner == worker}
    fetched = {s for (s, _, _), runs in timeline.worker.items() if runs == worker} - owned
    return (
        *total({number: one for s in owned for number, one in stages[s].held.items()}),
        max((stages[s].weights + stages[s].gradients for s in fetched), default=0),
        int(timeline.peak_activations[worker]),
    )


def summed(timeline: Timeline, stages: Sequence[StageEstimate]) -> list[float]:
    """The bytes that each worker takes in for sums of gradients: (k - 1) / k of a weight that k workers run, in
    one stage or in several, and as many again where each of them owns it and needs the sum."""
    runs: dict[int, set[int]] = defaultdict(set)
    owns: dict[int, set[int]] = defaultdict(set)
    for s, worker, owner in {(job[0], worker, timeline.owner[job]) for job, worker in timeline.worker.items()}:
        for number in stages[s].held:
            runs[number].add(worker)
            owns[number].add(owner)
    gradients = {number: one.gradients for stage in stages for number, one in stage.held.items()}
    taken = [0.0] * timeline.W
    for number, workers in runs.items():
        share = gradients[number] * (len(workers) - 1) / len(workers)
        for worker in workers | owns[number]:
            taken[worker] += share * (2 if len(owns[number]) > 1 else 1)
    return taken
