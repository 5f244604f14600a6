"""From a schedule to what each thread of each worker does: simulated, put in order, with messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter

from bppsa.common.process.collector import collector_paused
from bppsa.errors import ScheduleError
from bppsa.fxpasses.partition.ops.changes import Change
from bppsa.schedule.job_graph.graph import numbered
from bppsa.schedule.job_graph.jobs import PerJob
from bppsa.schedule.job_graph.spec import B, F, Jobs, Schedule, W
from bppsa.schedule.programs.handovers import Handovers
from bppsa.schedule.programs.messages import Item, Items, JobStep
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


@dataclass(frozen=True)
class WorkerProgram:
    """What one worker does. lanes: the steps of each."""

    lanes: tuple[tuple[JobStep, ...], ...]

    @cached_property
    def readers(self) -> Counter[Item]:
        """How many of the worker's steps read an item."""
        return Counter(item for lane in self.lanes for step in lane for item in step.reads)


@dataclass(frozen=True, eq=False)
class StepPlan:
    """What a call runs, and where. programs: of the workers that were asked for, as a rank asks for its own alone."""

    timeline: Timeline
    handovers: Handovers
    programs: dict[int, WorkerProgram] = field(default_factory=dict, repr=False)

    @property
    def split(self) -> bool:
        return W in self.timeline.jobs.directions

    @cached_property
    def computing(self) -> dict[int, list[int]]:
        """The workers that compute gradients of a stage's weights, ascending, by stage."""
        last = last_direction(self.timeline)
        pairs = {
            (s, at) for (s, _, d), at in zip(self.timeline.jobs, self.timeline.graph.worker, strict=True) if d == last
        }
        return {s: sorted(at for _, at in of) for s, of in groupby(sorted(pairs), key=itemgetter(0))}

    @property
    def kinds(self) -> list[str]:
        """The kinds of its jobs."""
        return sorted(self.timeline.jobs.directions)

    def program(self, worker: int) -> WorkerProgram:
        if worker not in self.programs:
            steps = {step.action: step for step in self.handovers.steps(worker)}
            lanes = (tuple(steps[action] for action in lane) for lane in self.lanes(worker))
            self.programs[worker] = WorkerProgram(tuple(lanes))
        return self.programs[worker]

    def lanes(self, worker: int) -> list[list[Action]]:
        """The jobs of each lane of a worker, in order."""
        found: list[list[Action]] = [[] for _ in range(self.timeline.lanes)]
        for job in self.timeline.jobs_on(worker):
            found[self.timeline.lane[job]].append(Action(*job))
        return found

    def batches(self, worker: int) -> dict[int, list[int]]:
        """The micro-batches whose weight gradients the worker computes, by stage."""
        last, found = last_direction(self.timeline), dict[int, list[int]]()
        for stage, batch, kind in (step.action for lane in self.program(worker).lanes for step in lane):
            if kind == last:
                found.setdefault(stage, []).append(batch)
        return found

    def digest(self) -> str:
        """A hash of all that ranks number messages by: it differs where their plans do."""
        graph, handovers = self.timeline.graph, self.handovers
        placed = self.timeline.jobs_of, graph.line[: len(self.timeline.jobs)], graph.owner
        told = repr((placed, handovers.reads, handovers.writes, handovers.waits))
        return blake2b(told.encode(), digest_size=4).hexdigest()


def last_direction(timeline: Timeline) -> str:
    """That of the jobs which compute the gradients of weights."""
    return W if W in timeline.jobs.directions else B


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
    return StepPlan(timeline, Handovers(timeline, reads, writes))


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
            f"data='local': rank {rank} has no micro-batch to bring rows for; give microbatches={plan.timeline.W}, or "
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
    forward = {}
    for (s, b, d), worker in zip(timeline.jobs, timeline.graph.worker, strict=True):
        if d == F:
            forward[s, b] = worker
    for (s, b, d), worker in zip(timeline.jobs, timeline.graph.worker, strict=True):
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
