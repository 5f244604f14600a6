"""Laws of every timeline, and the event loop against the paper's recursion."""

from __future__ import annotations

import doctest
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given

import bppsa.schedule
from bppsa.schedule import Schedule, Timeline, ddp, gpipe, lpp, simulate
from tests.schedule.factories import chain_inputs, chains, recursion, timelines


@given(timeline=timelines())
def test_no_worker_runs_two_jobs_at_once(timeline: Timeline) -> None:
    """Nor a lane of it, where it has several."""
    for jobs in timeline.jobs_of:
        for lane in range(timeline.lanes):
            for first, second in pairwise(job for job in jobs if timeline.lane[job] == lane):
                assert timeline.end[first] <= timeline.start[second]


@given(timeline=timelines(of=chains))
def test_no_job_starts_before_what_it_waits_for(timeline: Timeline) -> None:
    jobs = set(timeline.start)
    for job in jobs:
        assert all(timeline.end[source] <= timeline.start[job] for source in chain_inputs(jobs, job))
    schedule = timeline.graph.schedule
    if schedule.pred is not None:
        for job in jobs:
            assert all(timeline.end[source] <= timeline.start[job] for source in schedule.pred(*job))


@given(timeline=timelines(of=chains))
def test_makespan_is_no_less_than_the_work_and_the_critical_path(timeline: Timeline) -> None:
    took = {job: timeline.end[job] - timeline.start[job] for job in timeline.start}
    for jobs in timeline.jobs_of:
        assert timeline.lanes * timeline.makespan >= sum(took[job] for job in jobs)
    for batch in {b for _, b, _ in took}:
        assert timeline.makespan >= sum(took[s, b, d] for s, b, d in took if b == batch and d in "FB")
    assert timeline.utilisation == sum(took.values()) / (timeline.lanes * timeline.W * timeline.makespan)
    assert timeline.bubble == pytest.approx(1 - timeline.utilisation)


@given(timeline=timelines().filter(lambda t: t.graph.schedule.policy == "greedy"))
def test_the_event_loop_is_the_recursion_of_the_paper(timeline: Timeline) -> None:
    assert dict(timeline.end) == recursion(timeline)


@given(timeline=timelines())
def test_a_worker_that_is_free_never_leaves_a_ready_job_waiting(timeline: Timeline) -> None:
    """Greedy, as the paper's workers are. Strict ones wait."""
    graph = timeline.graph
    if graph.schedule.policy == "strict":
        return
    end, start, jobs = timeline.end, timeline.start, list(timeline.jobs)
    ready = dict.fromkeys(jobs, 0)
    for p, q in graph.edges():
        ready[jobs[q]] = max(ready[jobs[q]], end[jobs[p]])
    for of in timeline.jobs_of:
        for job in of:
            waited = start[job] - ready[job]
            others = [other for other in of if ready[job] < end[other] and start[other] < start[job]]
            others = [other for other in others if timeline.lane[other] == timeline.lane[job]]
            busy = sum(end[other] - max(start[other], ready[job]) for other in others)
            assert waited == busy


def test_integers_stay_integers_and_fractions_exact() -> None:
    assert isinstance(simulate(gpipe(), S=3, B=4, forward=2, backward=3).makespan, int)
    third = Fraction(1, 3)
    assert simulate(gpipe(), S=3, B=4, forward=third, backward=2 * third).makespan == 6


def test_costs_by_stage_and_by_job() -> None:
    by_stage = simulate(ddp(), S=3, B=1, forward=[1, 2, 3], backward=[10, 20, 30])
    by_job = simulate(ddp(), S=3, B=1, forward=lambda s, b: s + 1, backward=lambda s, b: 10 * (s + 1))
    assert by_stage.makespan == by_job.makespan == 66
    assert dict(by_stage.end) == dict(by_job.end)


def test_a_transfer_delays_its_reader_and_no_worker() -> None:
    """Two stages on two workers: each activation and each gradient comes 5 later, while the sender works on."""
    timeline = simulate(gpipe(), S=2, B=2, activation_time=5, gradient_time=3)
    assert [timeline.start[0, b, "F"] for b in (0, 1)] == [0, 1]
    assert [timeline.start[1, b, "F"] for b in (0, 1)] == [6, 7]
    assert [timeline.start[0, b, "B"] for b in (0, 1)] == [12, 13]
    assert simulate(ddp(), S=2, B=2, activation_time=5, gradient_time=3).makespan == 4


def test_a_fetch_of_weights_holds_the_worker() -> None:
    owned, foreign = Schedule(lambda s, b, d: (0, 0), W=2), Schedule(lambda s, b, d: (1, 0), W=2)
    assert simulate(owned, S=2, B=1, weight_time=10).makespan == 4
    assert simulate(foreign, S=2, B=1, weight_time=10).makespan == 44


def test_the_example_of_the_package() -> None:
    assert doctest.testmod(bppsa.schedule) == (0, 2)


@pytest.mark.parametrize(("policy", "second"), [("greedy", (1, 0, "F")), ("pending", (0, 1, "F"))])
def test_what_has_been_ready_for_longest(policy: str, second: tuple[int, int, str]) -> None:
    """At time 1 the worker has the choice of the second stage, ready now, and the second micro-batch, ready since 0."""
    deep_first = Schedule(lambda s, b, d: (0, 0), lambda s, b, d: (-s, b), policy=policy, directions=("F",))
    assert simulate(deep_first, S=2, B=2).jobs_of[0][1] == second


def test_the_number_of_workers() -> None:
    """What is asked for, else what the schedule says, else as many as w names."""
    said = Schedule(lambda s, b, d: (s, s), W=4)
    assert [simulate(said, S=2, B=1, W=W).W for W in (None, 3)] == [4, 3]
    assert simulate(Schedule(lambda s, b, d: (s, 0)), S=2, B=1).W == 2


def test_a_schedule_of_ones_own() -> None:
    """The README's: two functions, and what they imply."""
    mine = Schedule(w=lambda s, b, d: (s % 2, s % 2), n=lambda s, b, d: (d == "F", b))
    timeline = simulate(mine, S=4, B=2)
    assert timeline.W == 2
    assert timeline.activation_receives == [2, 4]
    assert timeline.makespan == simulate(lambda S, B, W=None: mine, S=4, B=2, W=2).makespan
    assert timeline.makespan > simulate(lpp(G=2), S=4, B=2).makespan
