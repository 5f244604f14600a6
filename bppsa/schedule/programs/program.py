"""A program: of each worker, the list of what it does, in order. Actions print as `2F0` and parse back."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bppsa.errors import ScheduleError
from bppsa.schedule.job_graph.edges import input_edges
from bppsa.schedule.job_graph.jobs import Listed
from bppsa.schedule.job_graph.spec import B, F, Schedule, W
from bppsa.schedule.timeline import Timeline

PRINTED = re.compile(r"(\d+)([A-Z]+|[A-Z]+\d+\.)(\d+)")


class Action(NamedTuple):
    """Running a job: the same tuple (s, b, d)."""

    stage: int
    batch: int
    kind: str

    def __str__(self) -> str:
        """2F0, as torch's pipelining prints it; 2U1.0 where the kind ends in a number."""
        return f"{self.stage}{self.kind}{'.' if self.kind[-1].isdigit() else ''}{self.batch}"

    @staticmethod
    def parse(text: str) -> Action:
        found = PRINTED.fullmatch(text)
        if found is None:
            raise ScheduleError(f"{text!r} is no action: stage, kind and micro-batch, e.g. 2F0")
        stage, kind, batch = found.groups()
        return Action(int(stage), int(batch), kind.removesuffix("."))


def program(timeline: Timeline) -> list[list[Action]]:
    """What each worker does, in the order in which the timeline starts it."""
    return [[Action(*job) for job in jobs] for jobs in timeline.jobs_of]


def replay(lists: Sequence[Sequence[Action]], schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Runs a program without a clock: a worker goes through its list, and waits where an input is not there yet. Gives
    (worker, action) as they run. Raises ScheduleError where all workers wait, and names the actions at which they do.
    """
    jobs = Listed([action for actions in lists for action in actions])
    inputs: list[list[int]] = [[] for _ in jobs]
    for p, q in input_edges(schedule, jobs):
        inputs[q].append(p)
    done: set[int] = set()
    left = {worker: deque(actions) for worker, actions in enumerate(lists) if actions}
    while left:
        before = len(done)
        for worker, actions in list(left.items()):
            while actions and done.issuperset(inputs[jobs.number(actions[0])]):
                done.add(jobs.number(actions[0]))
                yield worker, actions.popleft()
            if not actions:
                del left[worker]
        if len(done) == before:
            heads = ", ".join(f"worker {worker} at {actions[0]}" for worker, actions in left.items())
            raise ScheduleError(f"the program is a deadlock: {heads}")


def peak_activations(lists: Sequence[Sequence[Action]], schedule: Schedule) -> list[int]:
    """The most activations that each worker holds in a replay: F begins one, B, or W where there is one, ends it.

    Equal to the timeline's where F and B of a stage and micro-batch share a worker and it has one lane; otherwise the
    lists do not say which comes first.
    """
    split = {action[:2] for actions in lists for action in actions if action.kind == W}
    held, peak = [0] * len(lists), [0] * len(lists)
    holder: dict[tuple[int, int], int] = {}
    for worker, (s, b, d) in replay(lists, schedule):
        if d == F:
            holder[s, b] = worker
            held[worker] += 1
            peak[worker] = max(peak[worker], held[worker])
        elif d == W or (d == B and (s, b) not in split):
            held[holder.pop((s, b))] -= 1
    return peak
