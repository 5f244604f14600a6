"""Activations counted by a replay of each worker's list, which knows no clock, beside those of the timeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.schedule import Job, Recipe, Timeline, blelloch, one_f_one_b, simulate, v_schedule, zero_bubble
from bppsa.schedule.programs.program import Action
from tests.schedule.factories import sizes, timelines


def replay(timeline: Timeline) -> Iterator[tuple[int, Job]]:
    """Gives (worker, job) as they run: a worker goes through its list, and waits where an input is not there yet."""
    inputs: dict[Job, list[Job]] = {job: [] for job in timeline.jobs}
    for p, q in timeline.graph.inputs():
        inputs[timeline.jobs[q]].append(timeline.jobs[p])
    done: set[Job] = set()
    left = {worker: deque(jobs) for worker, jobs in enumerate(timeline.jobs_of)}
    while any(left.values()):
        before = len(done)
        for worker, jobs in left.items():
            while jobs and done.issuperset(inputs[jobs[0]]):
                done.add(jobs[0])
                yield worker, jobs.popleft()
        assert len(done) > before, "a deadlock"


def peak_activations(timeline: Timeline) -> list[int]:
    """The most activations that each worker holds in a replay: F begins one, B, or W where there is one, ends it."""
    split = {job[:2] for job in timeline.jobs if job[2] == "W"}
    held, peak = [0] * timeline.W, [0] * timeline.W
    holder: dict[tuple[int, int], int] = {}
    for worker, (s, b, d) in replay(timeline):
        if d == "F":
            holder[s, b] = worker
            held[worker] += 1
            peak[worker] = max(peak[worker], held[worker])
        elif d == "W" or (d == "B" and (s, b) not in split):
            held[holder.pop((s, b))] -= 1
    return peak


def sequential(timeline: Timeline) -> bool:
    """Whether the lists say in which order activations begin and end."""
    worker = timeline.worker
    return timeline.lanes == 1 and all(worker[s, b, "F"] == worker[s, b, d] for s, b, d in worker)


@given(timeline=timelines().filter(sequential))
def test_memory_is_that_of_a_replay(timeline: Timeline) -> None:
    assert peak_activations(timeline) == timeline.peak_activations


@pytest.mark.parametrize("recipe", [zero_bubble(), v_schedule(), one_f_one_b(), blelloch(4, "doubling")], ids=repr)
def test_memory_is_that_of_a_replay_where_the_backward_is_split_or_a_scan(recipe: Recipe) -> None:
    timeline = simulate(recipe, S=4, B=6)
    assert peak_activations(timeline) == timeline.peak_activations


@given(S=sizes, B=st.integers(1, 12))
def test_actions_print_as_torchs(S: int, B: int) -> None:
    last = simulate(one_f_one_b(), S=S, B=B).jobs_of[-1]
    assert " ".join(str(Action(*job)) for job in last) == " ".join(f"{S - 1}F{b} {S - 1}B{b}" for b in range(B))
    assert str(Action(2, 0, "U1")) == "2U1.0"
