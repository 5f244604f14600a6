"""From a schedule to what each thread of each worker does: simulated, put in order, with messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby

from bppsa.common.collector import collector_paused
from bppsa.errors import ScheduleError
from bppsa.fxpasses.partition.ops.changes import Change
from bppsa.schedule.job_graph.graph import numbered
from bppsa.schedule.job_graph.jobs import PerJob
from bppsa.schedule.job_graph.spec import F, Jobs, Schedule, W
from bppsa.schedule.programs.messages import TOKEN, Item, Items, JobStep, with_messages
from bppsa.schedule.programs.program import Action
from bppsa.schedule.recompute import Recompute
from bppsa.schedule.simulator import Cost, simulate
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import Units
from bppsa.schedule.zoo.time_chunks import END

KINDS: Mapping[str, Callable[[str], bool]] = {  # which directions a call runs
    "step": lambda d: True,
    "forward": lambda d: d in (F, END),
    "backward": lambda d: d not in (F, END),
}


@dataclass(frozen=True, eq=False)
class StepPlan:
    """steps: of each worker and lane. counted: by worker, how many of its steps read an item, once that was asked."""

    timeline: Timeline
    steps: tuple[tuple[tuple[JobStep, ...], ...], ...]
    counted: dict[int, Counter[Item]] = field(default_factory=dict, repr=False)

    @property
    def split(self) -> bool:
        return W in self.timeline.jobs.directions

    @cached_property
    def computing(self) -> dict[int, list[int]]:
        """The workers that compute gradients of a stage's weights, ascending, by stage."""
        found: dict[int, set[int]] = {}
        for worker, lanes in enumerate(self.steps):
            for stage in batches(lanes):
                found.setdefault(stage, set()).add(worker)
        return {stage: sorted(workers) for stage, workers in found.items()}

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of its jobs."""
        return sorted({action.kind for worker in range(len(self.steps)) for action in self.actions(worker)})

    def readers(self, worker: int) -> Counter[Item]:
        """How many of the worker's steps read an item: a rank asks for its own alone."""
        if worker not in self.counted:
            self.counted[worker] = Counter(item for lane in self.steps[worker] for step in lane for item in step.reads)
        return self.counted[worker]

    def actions(self, worker: int) -> list[Action]:
        return [step.action for lane in self.steps[worker] for step in lane]

    @property
    def messages(self) -> int:
        return sum(len(step.receives) for lanes in self.steps for lane in lanes for step in lane)


@collector_paused()
def make_plan(
    schedule: Schedule,
    S: int,
    B: int,
    workers: int | None,
    costs: Mapping[str, Cost],
    recompute: Recompute | None,
    units: Units,
    reads: Items,
    writes: Items,
) -> StepPlan:
    """Raises ScheduleError where the schedule cannot run."""
    timeline = simulate(schedule, S=S, B=B, W=workers, costs=costs, recompute=recompute, units=units)
    check_runs(timeline)
    waits, signals = tokens(timeline)
    lists = [[Action(*job) for job in jobs] for jobs in timeline.jobs_of]
    steps = with_messages(
        lists,
        lambda action: [*reads(action), *waits.get(action, ())],
        lambda action: [*writes(action), *signals.get(action, ())],
    )
    return StepPlan(timeline, tuple(tuple(map(tuple, by_lane(worker, timeline))) for worker in steps))


def by_lane(steps: Sequence[JobStep], timeline: Timeline) -> list[list[JobStep]]:
    """A worker's steps, for each of its lanes."""
    if timeline.lanes == 1:
        return [list(steps)]
    found: list[list[JobStep]] = [[] for _ in range(timeline.lanes)]
    for step in steps:
        found[timeline.lane[step.action]].append(step)
    return found


def own_batches(plan: StepPlan, rank: int) -> list[int]:
    """The micro-batches that a rank runs alone. Raises ScheduleError where any has jobs on several."""
    workers: dict[int, set[int]] = {}
    for job in plan.timeline.jobs:
        workers.setdefault(job[1], set()).add(plan.timeline.worker[job])
    for b, several in workers.items():
        if len(several) > 1:
            raise ScheduleError(
                f"data='local': micro-batch {b} has jobs on workers {', '.join(map(str, sorted(several)))}, and its "
                f"rows would be on one; give every rank the whole batch, or take ddp() or fsdp()"
            )
    mine = [b for b, (worker,) in sorted(workers.items()) if worker == rank]
    if not mine:
        raise ScheduleError(
            f"data='local': rank {rank} has no micro-batch to bring rows for; give microbatches={len(plan.steps)}, or "
            f"more"
        )
    return mine


def predicted(plan: StepPlan, measured: Timeline) -> Timeline:
    """The program simulated with the times that its jobs took: what is left of a measured makespan is transfers,
    waiting for them, and the executor's own time."""
    timeline, took = plan.timeline, PerJob(measured.jobs, measured.durations)
    place = {job: at for jobs in timeline.jobs_of for at, job in enumerate(jobs)}
    costs = {d: partial(lambda d, s, b: took[s, b, d], d) for d in timeline.jobs.directions}
    ordered = replace(timeline.graph.schedule, n=lambda s, b, d: place[s, b, d], policy="strict")
    return simulate(ordered, S=timeline.S, B=timeline.jobs.B, W=timeline.W, costs=costs, units=Units("s"))


def only(schedule: Schedule, S: int, B: int, wanted: Callable[[str], bool]) -> Schedule:
    """The schedule without the jobs of other directions, and without the edges from them."""
    jobs = [job for job in numbered(schedule, S, B) if wanted(job[2])]
    if len(jobs) == len(numbered(schedule, S, B)):
        return schedule
    kept = set(jobs)

    def within(function: Jobs | None) -> Jobs | None:
        return None if function is None else lambda s, b, d: [job for job in function(s, b, d) or () if job in kept]

    return replace(schedule, jobs=jobs, pred=within(schedule.pred), inputs=within(schedule.inputs))


def check_runs(timeline: Timeline) -> None:
    """Raises ScheduleError for what the simulator takes and no training does."""
    if not timeline.graph.schedule.flush:
        raise ScheduleError(
            "a schedule without a flush, as pipedream, updates weights within the step: it can only be "
            "simulated; take one_f_one_b, which has its order"
        )
    workers = list(zip(timeline.jobs, timeline.graph.worker, strict=True))
    forward = {(s, b): worker for (s, b, d), worker in workers if d == F}
    for (s, b, d), worker in workers:
        if forward.get((s, b), worker) != worker:
            raise ScheduleError(
                f"job {(s, b, d)} is on worker {worker}, and what it needs of its forward is on worker "
                f"{forward[s, b]}; let w give both the same"
            )


def check_changes(timeline: Timeline, changes: Sequence[Sequence[str]]) -> None:
    """changes: of each stage, what its forward changes. Raises ScheduleError where it would not change as in a loop
    over the micro-batches."""
    check_parameters(timeline, changes)
    for s in (s for s, names in enumerate(changes) if names):
        forwards = [job for jobs in timeline.jobs_of for job in jobs if (job[0], job[2]) == (s, F)]
        places = {(timeline.owner[job], timeline.worker[job], timeline.lane[job]) for job in forwards}
        fetched = any(owner != worker for owner, worker, _ in places)
        if fetched or len(places) > 1 or forwards != sorted(forwards):
            raise ScheduleError(
                f"{site(changes[s][0])}stage {s} changes the buffer {changes[s][0]} in its forward, and micro-batches "
                f"would not see it change in their order; take a schedule whose stages have one worker each, such "
                f"as gpipe()"
            )


def check_parameters(timeline: Timeline, changes: Sequence[Sequence[str]]) -> None:
    """Raises ScheduleError where a forward changes a Parameter that the backward of another micro-batch, which has not
    run yet, needs as it was."""
    for s, names in enumerate(changes):
        changed = next((name for name in names if isinstance(name, Change) and name.parameter), None)
        if changed is not None and several_in_flight(timeline, s):
            raise ScheduleError(
                f"{site(changed)}stage {s} changes the Parameter {changed} in its forward, and the backward of the "
                f"micro-batches before needs it as it was; take microbatches=1, or change it after optimizer.step()"
            )


def several_in_flight(timeline: Timeline, s: int) -> bool:
    """Whether a stage runs on several workers, or begins a micro-batch before all jobs of the last are done."""
    jobs = [(job, timeline.worker[job]) for jobs in timeline.jobs_of for job in jobs if job[0] == s]
    if len({worker for _, worker in jobs}) > 1:
        return True
    turns = [batch for batch, _ in groupby(batch for (_, batch, _), _ in jobs)]
    comes_back = len(turns) > len(set(turns))
    backwards_follow = {d for (_, _, d), _ in jobs} == {F}  # in another call
    return comes_back or (backwards_follow and len(turns) > 1)


def site(change: str) -> str:
    """Where and how, as far as that is known."""
    place = change.site.place if isinstance(change, Change) else ""
    return f"{place} ({change.site.op}): " if isinstance(change, Change) and place else ""


Tokens = Mapping[Action, Sequence[Item]]


def tokens(timeline: Timeline) -> tuple[Tokens, Tokens]:
    """What each job waits for and what it signals: the edges of pred that the order of a lane does not keep."""
    waits: dict[Action, list[Item]] = {}
    signals: dict[Action, list[Item]] = {}  # one of a job, whoever waits for it
    graph, jobs = timeline.graph, timeline.jobs
    between = [(p, q) for p, q in graph.orders() if graph.line[p] != graph.line[q]]
    data = set(graph.inputs()) if between else set()
    for p, q in between:
        if (p, q) in data:
            continue
        s, b, d = made_by = Action(*jobs[p])
        token = Item(TOKEN + d, s, b)
        waits.setdefault(Action(*jobs[q]), []).append(token)
        signals[made_by] = [token]
    return waits, signals


def batches(lanes: Sequence[Sequence[JobStep]]) -> dict[int, list[int]]:
    """The micro-batches whose weight gradients these steps compute, by stage."""
    actions = [step.action for steps in lanes for step in steps]
    last = "W" if any(action.kind == "W" for action in actions) else "B"
    found: dict[int, list[int]] = {}
    for stage, batch, kind in actions:
        if kind == last:
            found.setdefault(stage, []).append(batch)
    return found
