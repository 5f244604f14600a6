"""What a simulated schedule did: who ran which job when, and what that took of time, memory and traffic.

Every number is read off the jobs and their times; none comes from a formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from operator import mul, sub
from typing import Any

from bppsa.schedule import draw
from bppsa.schedule.bounds import bound
from bppsa.schedule.job_graph.graph import JobGraph
from bppsa.schedule.job_graph.jobs import Grid, PerJob
from bppsa.schedule.job_graph.spec import B, F, Job, W
from bppsa.schedule.units import JOBS, Units

SizeOf = Callable[[int, int], Any]  # of the activations, or the weights, of (s, b)
BEGINS, AGAIN, ENDS = "begins", "again", "ends"  # in the life of activations


class Timeline:
    """What a schedule did, simulated or measured.

    start[job], end[job], worker[job], owner[job] and lane[job] are read by a job (s, b, d).

    Metrics by worker are lists of W numbers. Times are ints where all costs are.

    Attributes:
        jobs: all of them.
        S: stages.
        W: workers.
        lanes: how many jobs a worker runs at a time.
        order: job numbers (jobs[number]) as they started.
        finished: job numbers as they ended.
        units: in what times and sizes count.
    """

    def __init__(
        self,
        graph: JobGraph,
        start: list[Any],
        end: list[Any],
        activation_size: SizeOf = lambda s, b: 1,
        weight_size: SizeOf = lambda s, b: 1,
        order: list[int] | None = None,
        finished: list[int] | None = None,
        units: Units = JOBS,
        kept_size: SizeOf | None = None,
    ) -> None:
        """start, end: of each job by its number, simulated or measured. order, finished: what sorting these gives.
        kept_size: where forwards run again, of what is held until they do."""
        self.units = units
        self.graph, self.jobs, self.S, self.W, self.lanes = graph, graph.jobs, graph.jobs.S, graph.workers, graph.lanes
        self.order = sorted(range(len(start)), key=start.__getitem__) if order is None else order
        self.finished = sorted(range(len(end)), key=end.__getitem__) if finished is None else finished
        self._start, self._end = start, end
        self.activation_size, self.weight_size, self.kept_size = activation_size, weight_size, kept_size
        self.start, self.end = PerJob(self.jobs, self._start), PerJob(self.jobs, self._end)
        self.worker, self.owner = PerJob(self.jobs, graph.worker), PerJob(self.jobs, graph.owner)

    @property
    def note(self) -> str:
        """What a reader should know of the schedule besides; "" where there is nothing."""
        return self.graph.schedule.note

    def __repr__(self) -> str:
        return f"Timeline(W={self.W}, makespan={self.makespan}, bubble={self.bubble:.1%})"

    # time

    @cached_property
    def makespan(self) -> Any:
        """The end of the last job; the first starts at 0."""
        return max(self._end)

    @cached_property
    def utilisation(self) -> float:
        """The share of the workers' time, in all of their lanes, in which they run a job."""
        capacity = self.lanes * self.W * self.makespan
        return float(sum(self.durations) / capacity) if capacity else 1.0

    @property
    def bubble(self) -> float:
        """The share in which they are idle: 1 - utilisation."""
        return 1 - self.utilisation

    @cached_property
    def durations(self) -> list[Any]:
        """How long each job takes, by its number: `timeline.jobs[number]`."""
        return list(map(sub, self._end, self._start))

    @cached_property
    def jobs_of(self) -> list[list[Job]]:
        """The jobs of each worker, in the order in which they start."""
        return list(map(self.jobs_on, range(self.W)))

    def jobs_on(self, worker: int) -> list[Job]:
        """Those of one worker."""
        return list(map(self.jobs.__getitem__, self._numbers_of[worker]))

    @cached_property
    def _numbers_of(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(self.W)]
        for number in self.order:
            found[self.graph.worker[number]].append(number)
        return found

    @cached_property
    def lane(self) -> PerJob[int]:
        """Which of its worker's lanes ran the job."""
        return PerJob(self.jobs, [line % self.lanes for line in self.graph.line[: len(self.jobs)]])

    bound = bound  # methods: timeline.bound(), timeline.text(), ...
    text, svg, chrome_trace = draw.text, draw.svg, draw.chrome_trace

    # memory

    @cached_property
    def peak_activations(self) -> list[Any]:
        """The most activations that a worker holds at a time, in the unit of `activation_sizes` (1 a stage and
        micro-batch by default). An activation lives from the start of its F to the end of its B, of its W where the
        backward is split, on the worker that ran F. Where forwards run again, `Recompute.kept` takes its place until
        the start of its B. At equal times frees come before allocations."""
        level, peak = [0] * self.W, [0] * self.W
        change, worker = self._changes, self.graph.worker
        for _, forward, event in self._lives():
            at = worker[forward]
            level[at] += change[event][forward]
            if level[at] > peak[at]:
                peak[at] = level[at]
        return peak

    @cached_property
    def memory(self) -> list[list[tuple[Any, Any]]]:
        """For each worker (time, activations it holds from then on), at each time at which one begins or ends."""
        curves: list[list[tuple[Any, Any]]] = [[] for _ in range(self.W)]
        for now, forward, event in self._lives():
            curve = curves[self.graph.worker[forward]]
            level = (curve[-1][1] if curve else 0) + self._changes[event][forward]
            if curve and curve[-1][0] == now:
                curve.pop()
            curve.append((now, level))
        return curves

    def _lives(self) -> Iterator[tuple[Any, int, str]]:
        """(time, forward job, BEGINS) where its activations begin, AGAIN where it runs again, ENDS where they end; in
        order of time, ends first."""
        start, end, finished = self._start, self._end, self.finished
        ends, directions = self._ends_activations_of, self._directions
        done = 0
        jobs, events = self.jobs, {F: BEGINS} if self.kept_size is None else {F: BEGINS, B: AGAIN}
        for number in self.order:
            event = events.get(directions[number])
            if event is None:
                continue
            now = start[number]
            while done < len(finished) and end[finished[done]] <= now:
                if ends[finished[done]] is not None:
                    yield end[finished[done]], ends[finished[done]], ENDS
                done += 1
            if event == BEGINS:
                yield now, number, BEGINS
            elif (forward := (*jobs[number][:2], F)) in jobs:
                yield now, jobs.number(forward), AGAIN
        for number in finished[done:]:
            if ends[number] is not None:
                yield end[number], ends[number], ENDS

    @cached_property
    def _changes(self) -> dict[str, list[Any]]:
        """How much more a worker holds at each event in the life of a forward job's activations."""
        size, kept = self.activation_size, self.kept_size
        sizes = [size(s, b) if d == F else 0 for s, b, d in self.jobs]
        held = sizes if kept is None else [kept(s, b) if d == F else 0 for s, b, d in self.jobs]
        return {BEGINS: held, AGAIN: list(map(sub, sizes, held)), ENDS: [-each for each in sizes]}

    @cached_property
    def _ends_activations_of(self) -> list[Any]:
        """The forward job whose activations nobody needs after each job, or None."""
        jobs = self.jobs
        if isinstance(jobs, Grid):
            size, last = jobs.S * jobs.B, W if W in jobs.directions else B
            forwards = range(jobs.first[F], jobs.first[F] + size) if F in jobs.first else [None] * size
            return [of for d in jobs.directions for of in (forwards if d == last else [None] * size)]
        last_of = {(s, b): d for d in (B, W) for s, b, of in jobs if of == d}
        return [jobs.number((s, b, F)) if last_of.get((s, b)) == d and (s, b, F) in jobs else None for s, b, d in jobs]

    # weights and traffic

    @cached_property
    def weight_storage(self) -> list[Any]:
        """The stages whose weights a worker owns, in the unit of `weight_sizes` (1 a stage by default)."""
        owned = set(zip(self.graph.owner, self._stages, strict=True))
        storage = [0] * self.W
        for owner, stage in owned:
            storage[owner] += self.weight_size(stage, 0)
        return storage

    @cached_property
    def peak_memory(self) -> list[Any]:
        """What a worker has to hold at most: the versions of the weights it owns, the largest stage that it fetches,
        and its peak of activations; sizes in one unit."""
        fetched = [0] * self.W
        for at, stage in self._fetches():
            fetched[at] = max(fetched[at], self.weight_size(stage, 0))
        weights = map(mul, self.weight_storage, (max(1, versions) for versions in self.weight_versions))
        return [sum(parts) for parts in zip(weights, fetched, self.peak_activations, strict=True)]

    @cached_property
    def weight_versions(self) -> list[int]:
        """The most versions of one stage's weights that a worker needs at a time: 1 where the step ends in a flush, 0
        where the worker runs nothing. Without a flush every backward makes a new version, and the version that a
        forward read is kept for its backward."""
        if self.graph.schedule.flush:
            busy = set(self.graph.worker)
            return [int(worker in busy) for worker in range(self.W)]
        versions = [0] * self.W
        newest: Counter[tuple[int, int]] = Counter()  # (worker, stage) -> how many backwards have ended
        kept: dict[tuple[int, int], Counter[int]] = {}  # -> version -> micro-batches that still need it
        read: dict[int, int] = {}  # forward job -> the version that it read
        for _, forward, event in self._lives():
            if event == AGAIN:
                continue
            worker = self.graph.worker[forward]
            place = (worker, self._stages[forward])
            users = kept.setdefault(place, Counter())
            if event == BEGINS:
                read[forward] = newest[place]
                users[newest[place]] += 1
            else:
                version = read.pop(forward)
                users[version] -= 1
                if not users[version]:
                    del users[version]
                newest[place] += 1
            versions[worker] = max(versions[worker], len(users) + (newest[place] not in users))
        return versions

    @cached_property
    def activation_receives(self) -> list[int]:
        """How many of a worker's F jobs read an activation that another worker made."""
        return self._receives(lambda source, target: target == F)

    @cached_property
    def gradient_receives(self) -> list[int]:
        """How many of a worker's B jobs read a gradient that another worker made; the loss's own is not counted.
        Where a schedule has more directions, as `blelloch` has, what they read of each other counts here."""
        return self._receives(lambda source, target: target not in (F, W) and source != F)

    def _receives(self, counts: Callable[[str, str], bool]) -> list[int]:
        """Edges of data that end at a worker and come from another."""
        received, worker, direction = [0] * self.W, self.graph.worker, self._directions
        for p, q in self.graph.inputs():
            if worker[p] != worker[q] and counts(direction[p], direction[q]):
                received[worker[q]] += 1
        return received

    @cached_property
    def weight_receives(self) -> list[int]:
        """How many of a worker's F jobs need weights that another worker owns."""
        received = [0] * self.W
        for owner, worker, d in zip(self.graph.owner, self.graph.worker, self._directions, strict=True):
            if d == F and owner != worker:
                received[worker] += 1
        return received

    @cached_property
    def weight_receives_cached(self) -> list[int]:
        """How often a worker fetches weights over the whole timeline, F and B, where it keeps the stage it fetched last
        (W needs no weights): fsdp's owners fetch S - 1 stages forward and S - 2 backward, as the last is still
        there."""
        received = [0] * self.W
        for at, _ in self._fetches():
            received[at] += 1
        return received

    def _fetches(self) -> Iterator[tuple[int, int]]:
        """(worker, stage) in the order of time."""
        kept = [-1] * self.W
        owner, worker, stages, directions = self.graph.owner, self.graph.worker, self._stages, self._directions
        for number in self.order:
            at, stage = worker[number], stages[number]
            if owner[number] != at and kept[at] != stage and directions[number] != W:
                kept[at] = stage
                yield at, stage

    @cached_property
    def _stages(self) -> list[int]:
        return [s for s, _, _ in self.jobs]

    @cached_property
    def _directions(self) -> list[str]:
        return [d for _, _, d in self.jobs]
