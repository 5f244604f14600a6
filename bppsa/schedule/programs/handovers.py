"""What the jobs of a timeline hand to each other, and the messages that this takes between workers.

What a job reads and makes is the same in each micro-batch, so it is asked for once a stage and direction. A worker's
steps are made from that alone: nobody has to go through the jobs of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, count

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.jobs import Grid
from bppsa.schedule.programs.messages import TOKEN, Item, Items, JobStep, Message
from bppsa.schedule.programs.program import Action
from bppsa.schedule.timeline import Timeline

StageDirection = tuple[int, str]  # (stage, direction)
NumberByTarget = dict[int, int]  # of the messages that carry an item, by the worker that receives it


class Handovers:
    """An item goes once to each worker that reads it, is sent by the job that makes it, and received by the worker's
    first job that reads it.

    Attributes:
        messages: the numbers of messages are below it.
    """

    def __init__(self, timeline: Timeline, reads: Items, writes: Items) -> None:
        """reads, writes: what a job reads and makes, the same for all micro-batches but for the items' `batch`.

        Raises ScheduleError where an item is read that no job makes.
        """
        self.timeline = timeline
        kinds = stage_directions(timeline)
        self.reads = {(s, d): tuple(reads(Action(s, 0, d))) for s, d in kinds}
        self.writes = {(s, d): tuple(writes(Action(s, 0, d))) for s, d in kinds}
        self.maker = {item: kind for kind, items in self.writes.items() for item in items}
        self.readers: dict[Item, list[StageDirection]] = {}
        for kind, items in self.reads.items():
            for item in items:
                self.readers.setdefault(item, []).append(kind)
        self._check_makers()
        edges = [0, *accumulate(map(len, self.readers.values()))]
        self.first = dict(zip(self.readers, edges, strict=False))
        self.waits, self.signals = tokens(timeline)
        numbers = count(edges[-1] * timeline.jobs.B)
        self.token_numbers = self._numbers_of_tokens(numbers)
        self.messages = next(numbers)

    def steps(self, worker: int) -> Iterator[JobStep]:
        """The jobs of a worker as they start, in all of its lanes."""
        seen = set[Item]()
        for s, b, d in self.timeline.jobs_on(worker):
            action = Action(s, b, d)
            read = (*of_batch(self.reads[s, d], b), *self.waits.get(action, ()))
            made = (*of_batch(self.writes[s, d], b), *self.signals.get(action, ()))
            come = [item for item in dict.fromkeys(read) if item not in seen]
            seen.update(come)
            receives = [
                Message(item, self._made_by(item), worker, to[worker])
                for item in come
                if worker in (to := self._numbers(item))
            ]
            sends = [
                Message(item, worker, target, number) for item in made for target, number in self._numbers(item).items()
            ]
            yield JobStep(action, read, tuple(receives), made, tuple(sends))

    def _made_by(self, item: Item) -> int:
        s, d = (item.number, item.kind.removeprefix(TOKEN)) if item.is_token else self.maker[item._replace(batch=0)]
        return self.timeline.worker[s, item.batch, d]

    def _numbers(self, item: Item) -> NumberByTarget:
        if item.is_token:
            return self.token_numbers[item]
        b, alike = item.batch, item._replace(batch=0)
        worker, jobs = self.timeline.worker, self.timeline.jobs
        readers = {worker[s, b, d] for s, d in self.readers.get(alike, ()) if (s, b, d) in jobs}
        targets = sorted(readers - {self._made_by(item)})
        return {target: (self.first[alike] + at) * jobs.B + b for at, target in enumerate(targets)}

    def _numbers_of_tokens(self, numbers: Iterator[int]) -> dict[Item, NumberByTarget]:
        """They go between micro-batches too, and are few: all are numbered, behind the others."""
        waiting: dict[Item, set[int]] = {}
        for action, items in self.waits.items():
            for item in items:
                waiting.setdefault(item, set()).add(self.timeline.worker[action])
        return {
            item: {worker: next(numbers) for worker in sorted(workers - {self._made_by(item)})}
            for item, workers in waiting.items()
        }

    def _check_makers(self) -> None:
        jobs, worker = self.timeline.jobs, self.timeline.worker
        for (s, d), items in self.reads.items():
            for item in items:
                maker = self.maker.get(item)
                if maker is not None and isinstance(jobs, Grid):
                    continue  # a grid has all jobs
                for b in range(jobs.B):
                    if (s, b, d) in jobs and (maker is None or (maker[0], b, maker[1]) not in jobs):
                        raise ScheduleError(
                            f"{Action(s, b, d)} of worker {worker[s, b, d]} reads {item._replace(batch=b)}, which no "
                            f"job makes"
                        )


def stage_directions(timeline: Timeline) -> Sequence[StageDirection]:
    jobs = timeline.jobs
    if isinstance(jobs, Grid):
        return [(s, d) for d in jobs.directions for s in range(jobs.S)]
    return list(dict.fromkeys((s, d) for s, _, d in jobs))


def of_batch(items: Sequence[Item], b: int) -> Iterator[Item]:
    return (Item(kind, number, b, by) for kind, number, _, by in items)


def tokens(timeline: Timeline) -> tuple[dict[Action, list[Item]], dict[Action, list[Item]]]:
    """What each job waits for and what it signals: the edges of pred that the order of a lane does not keep."""
    waits: dict[Action, list[Item]] = {}
    signals: dict[Action, list[Item]] = {}  # one of a job, whoever waits for it
    graph, jobs = timeline.graph, timeline.jobs
    between = [(p, q) for p, q in graph.orders if graph.line[p] != graph.line[q]]
    data = set(graph.inputs()) if between else set()
    for p, q in between:
        if (p, q) in data:
            continue
        s, b, d = made_by = Action(*jobs[p])
        token = Item(TOKEN + d, s, b)
        waits.setdefault(Action(*jobs[q]), []).append(token)
        signals[made_by] = [token]
    return waits, signals
