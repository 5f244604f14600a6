"""Memory, weights and traffic of a timeline, each counted again in the plainest way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import Schedule, Timeline, ddp, fsdp, gpipe, lpp, one_f_one_b, pipedream, simulate, zero_bubble
from tests.schedule.factories import alive, chains, durations, lifetimes, sizes, timelines


@given(timeline=timelines())
def test_peaks_are_the_most_that_is_alive(timeline: Timeline) -> None:
    births = [birth for _, birth, _ in lifetimes(timeline).values()]
    for worker in range(timeline.W):
        assert timeline.peak_activations[worker] == max(alive(timeline, worker, time) for time in births)


@given(timeline=timelines())
def test_the_memory_curve_is_what_is_alive_at_each_time(timeline: Timeline) -> None:
    for worker, curve in enumerate(timeline.memory):
        assert [level for _, level in curve] == [alive(timeline, worker, time) for time, _ in curve]
        changes = {time for at, *times in lifetimes(timeline).values() if at == worker for time in times}
        assert [time for time, _ in curve] == sorted(changes)
        assert max((level for _, level in curve), default=0) == timeline.peak_activations[worker]


@given(timeline=timelines(of=chains))
def test_traffic_is_what_w_implies(timeline: Timeline) -> None:
    """The paper's counts: of activations, and of weights for each forward job."""
    worker, owner = timeline.worker, timeline.owner
    activations, gradients, weights = ([0] * timeline.W for _ in range(3))
    for s, b, d in worker:
        at = worker[s, b, d]
        activations[at] += d == "F" and s > 0 and worker[s - 1, b, "F"] != at
        gradients[at] += d == "B" and s + 1 < timeline.S and worker[s + 1, b, "B"] != at
        weights[at] += d == "F" and owner[s, b, d] != at
    assert timeline.activation_receives == activations
    assert timeline.gradient_receives == gradients
    assert timeline.weight_receives == weights


@given(timeline=timelines())
def test_a_cache_of_one_stage_fetches_at_each_change_of_stage(timeline: Timeline) -> None:
    for worker, jobs in enumerate(timeline.jobs_of):
        foreign = [s for s, b, d in jobs if timeline.owner[s, b, d] != worker and d != "W"]
        changes = sum(stage != before for stage, before in zip(foreign, [None, *foreign], strict=False))
        assert timeline.weight_receives_cached[worker] == changes


@given(timeline=timelines())
def test_weight_storage_is_the_stages_owned(timeline: Timeline) -> None:
    owned = {(worker, s) for (s, _, _), worker in timeline.owner.items()}
    assert timeline.weight_storage == [sum(of == worker for of, _ in owned) for worker in range(timeline.W)]


def test_it_says_what_it_is() -> None:
    assert repr(simulate(gpipe(), S=4, B=4)) == "Timeline(W=4, makespan=14, bubble=42.9%)"


def test_sizes_by_stage() -> None:
    timeline = simulate(lpp(G=1, R=2), S=4, B=1, activation_sizes=[1, 10, 100, 1000], weight_sizes=[5, 6, 7, 8])
    assert timeline.peak_activations == [101, 1010]
    assert timeline.weight_storage == [12, 14]


def test_sizes_and_costs_of_nothing() -> None:
    weightless = simulate(pipedream(), S=2, B=4, activation_sizes=[0, 1])
    assert weightless.weight_versions == simulate(pipedream(), S=2, B=4).weight_versions
    assert weightless.peak_activations == [0, 1]
    instant = simulate(gpipe(), S=2, B=2, forward=0, backward=0)
    assert (instant.makespan, instant.bubble, instant.bound()) == (0, 0, math.inf)


def test_the_order_of_directions_is_free() -> None:
    turned = Schedule(lambda s, b, d: (s, s), lambda s, b, d: (d == "F", b), directions=("B", "F"))
    plain = Schedule(turned.w, turned.n)
    assert dict(simulate(turned, S=3, B=4).start) == dict(simulate(plain, S=3, B=4).start)
    assert simulate(turned, S=3, B=4).peak_activations == simulate(plain, S=3, B=4).peak_activations
    assert simulate(Schedule(turned.w, directions=("F",)), S=3, B=4).peak_activations == [4, 4, 4]


def test_what_a_worker_holds() -> None:
    """fsdp: its own stage, the one it has fetched, and all activations. pipedream: a version each of its weights."""
    sharded = simulate(fsdp(), S=3, B=4, weight_sizes=[5, 6, 20])
    assert sharded.peak_memory == [5 + 20 + 3, 6 + 20 + 3, 20 + 6 + 3, 20 + 3]
    assert simulate(pipedream(), S=3, B=9, weight_sizes=10).peak_memory == [33, 22, 11]
    assert simulate(gpipe(), S=3, B=9, weight_sizes=10).peak_memory == [19, 19, 19]


@given(timeline=timelines())
def test_a_timeline_from_its_times_alone(timeline: Timeline) -> None:
    """As a measured one is made."""
    again = Timeline(timeline.graph, list(timeline.start.values()), list(timeline.end.values()))
    for metric in ("makespan", "utilisation", "peak_activations", "memory", "weight_versions", "peak_memory"):
        assert getattr(again, metric) == getattr(timeline, metric)
    assert [len(jobs) for jobs in again.jobs_of] == [len(jobs) for jobs in timeline.jobs_of]


def test_an_activation_lives_where_its_forward_ran() -> None:
    """Forward and backward of (s, b) may run on different workers."""
    timeline = simulate(Schedule(lambda s, b, d: (0, int(d == "B"))), S=3, B=1)
    assert timeline.peak_activations == [3, 0]
    assert timeline.gradient_receives == [0, 0]


def test_frees_come_before_allocations() -> None:
    """The last stage's forward starts as its backward before ends."""
    assert simulate(one_f_one_b(), S=3, B=5).peak_activations[-1] == 1


def test_a_split_backward_holds_activations_to_the_end_of_w() -> None:
    held = Schedule(lambda s, b, d: (0, 0), lambda s, b, d: (d == "W", b, d == "B"), directions=("F", "B", "W"))
    assert simulate(held, S=1, B=3).peak_activations == [3]
    assert simulate(Schedule(held.w, held.n), S=1, B=3).peak_activations == [1]


@given(S=sizes, B=st.integers(1, 12), forward=durations, backward=durations)
def test_versions_of_pipedream(S: int, B: int, forward: int, backward: int) -> None:
    """At most S - s, and that many once the pipeline has been full for as long."""
    found = simulate(pipedream(), S=S, B=B, forward=forward, backward=backward).weight_versions
    assert all(versions <= S - s for s, versions in enumerate(found))
    assert simulate(pipedream(), S=S, B=3 * S, forward=forward, backward=backward).weight_versions == [
        S - s for s in range(S)
    ]


def test_a_version_that_nobody_has_read_yet() -> None:
    """F0 F1 B0 B1: after B0 there is a new version, and the one that B1 needs."""
    forwards_first = Schedule(lambda s, b, d: (0, 0), lambda s, b, d: d == "B", flush=False)
    assert simulate(forwards_first, S=1, B=2).weight_versions == [2]


def test_versions_with_a_flush() -> None:
    assert simulate(one_f_one_b(), S=3, B=5).weight_versions == [1, 1, 1]
    assert simulate(one_f_one_b(), S=3, B=5, W=4).weight_versions == [1, 1, 1, 0]


def test_fsdp_keeps_the_stage_of_the_turn() -> None:
    """An owner fetches 2(S - 1) - 1 times, and S - 1 of them forward, which is the paper's column."""
    timeline = simulate(fsdp(), S=4, B=6)
    assert timeline.weight_receives == [3, 3, 3, 3, 4, 4]
    assert timeline.weight_receives_cached == [5, 5, 5, 5, 7, 7]
    assert timeline.weight_storage == [1, 1, 1, 1, 0, 0]


def test_a_gradient_of_weights_needs_no_weights() -> None:
    """F0 F1 B1 B0 W1 W0 on a worker that owns none: it fetches 0, 1, and 0 again."""
    foreign = Schedule(lambda s, b, d: (1, 0), lambda s, b, d: (d == "W", -s), directions=("F", "B", "W"), W=2)
    timeline = simulate(foreign, S=2, B=1)
    assert [d for _, _, d in timeline.jobs_of[0]] == ["F", "F", "B", "B", "W", "W"]
    assert timeline.weight_receives_cached == [3, 0]
    assert simulate(foreign, S=2, B=1, weight_time=10).makespan == 6 + 4 * 10


@given(timeline=timelines(of=chains))
def test_the_bound(timeline: Timeline) -> None:
    assert timeline.utilisation <= timeline.bound() * (1 + 1e-12)


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_the_bound_of_identical_stages(S: int, B: int, forward: int, backward: int) -> None:
    for recipe in (ddp(), gpipe(), one_f_one_b()):
        timeline = simulate(recipe, S=S, B=B, forward=forward, backward=backward)
        mean_peak = sum(timeline.peak_activations) / timeline.W
        assert timeline.bound() == pytest.approx(2 * mean_peak / (S + 1))


def counter_example() -> Schedule:
    """Two workers that swap stages with every micro-batch, one micro-batch at a time."""

    def w(s: int, b: int, d: str) -> tuple[int, int]:
        return (s + b) % 2, (s + b) % 2

    def pred(s: int, b: int, d: str) -> list[tuple[int, int, str]]:
        return [(1, b - 1, "B")] if (s, d) == (0, "F") and b > 0 else []

    return Schedule(w, pred=pred)


@pytest.mark.parametrize("B", [1, 2, 3, 10, 100])
def test_the_paper_s_bound_does_not_hold(B: int) -> None:
    """rho <= M / S: here M = 1 and S = 2, and rho tends to 2/3, which is what our bound gives."""
    timeline = simulate(counter_example(), S=2, B=B)
    assert timeline.makespan == 3 * B + 1
    assert max(timeline.peak_activations) == 1
    assert timeline.utilisation == pytest.approx(2 * B / (3 * B + 1))
    assert timeline.utilisation <= timeline.bound() <= 2 / 3 + 1e-12
    assert (timeline.utilisation > 1 / 2) == (B > 1)


def test_the_bound_is_of_chains() -> None:
    with pytest.raises(ScheduleError, match="along a chain"):
        simulate(Schedule(lambda s, b, d: (0, 0), directions=("F",)), S=2, B=2).bound()


@given(S=sizes)
def test_the_bound_of_a_split_backward(S: int) -> None:
    """3 mean peak / (S + 2) for F = B = W = 1: a W job keeps its own stage's activations only."""
    assert simulate(zero_bubble(), S=S, B=2 * S).bound() == pytest.approx(3 * S / (S + 2))
