"""The zoo against what is known of each schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import (
    Recipe,
    Schedule,
    Timeline,
    breadth_first,
    ddp,
    depth_first,
    fsdp,
    fslpp,
    gpipe,
    interleaved,
    lpp,
    naive,
    one_f_one_b,
    simulate,
    v_schedule,
    wavelet_dp,
    wavelet_mp,
    zero_bubble,
)
from tests.schedule.factories import GROUPED, durations, recipes, sizes


def same(first: Timeline, second: Timeline) -> bool:
    return dict(first.start) == dict(second.start) and dict(first.worker) == dict(second.worker)


@given(S=sizes, B=sizes, data=st.data())
def test_every_schedule_runs_for_all_numbers(S: int, B: int, data: st.DataObject) -> None:
    """B < S and B = 1 among them; and W is what it needs, so giving it changes nothing."""
    recipe = data.draw(recipes(S))
    timeline = simulate(recipe, S=S, B=B)
    for d in recipe.build(S, B).directions:
        assert all((s, b, d) in timeline.start for s in range(S) for b in range(B))
    assert same(timeline, simulate(recipe, S=S, B=B, W=timeline.W))


def test_the_ddp_diagram_of_the_paper() -> None:
    timeline = simulate(ddp(), S=4, B=8, backward=2)
    assert (timeline.W, timeline.makespan) == (8, 12)
    for b in range(8):
        assert timeline.worker[0, b, "F"] == b
        assert [timeline.start[s, b, "F"] for s in range(4)] == [0, 1, 2, 3]
        assert [timeline.start[s, b, "B"] for s in range(4)] == [10, 8, 6, 4]


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_naive(S: int, B: int, forward: int, backward: int) -> None:
    timeline = simulate(naive(), S=S, B=B, forward=forward, backward=backward)
    assert timeline.makespan == B * S * (forward + backward)
    assert timeline.peak_activations == [1] * S


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_data_parallel(S: int, B: int, forward: int, backward: int) -> None:
    for recipe in (ddp(), fsdp()):
        timeline = simulate(recipe, S=S, B=B, forward=forward, backward=backward)
        assert timeline.makespan == S * (forward + backward)
        assert timeline.peak_activations == [S] * B
        assert timeline.activation_receives == timeline.gradient_receives == [0] * B


def test_data_parallel_on_fewer_workers() -> None:
    timeline = simulate(ddp(), S=3, B=5, W=2)
    assert [timeline.worker[0, b, "F"] for b in range(5)] == [0, 1, 0, 1, 0]
    assert timeline.peak_activations == [3, 3]
    assert [simulate(fsdp(), S=5, B=2, W=3).owner[s, 0, "F"] for s in range(5)] == [0, 1, 2, 0, 1]


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_pipelines(S: int, B: int, forward: int, backward: int) -> None:
    """The paper's B + S - 1, in units of f + b, whatever the order; memory is what the order changes."""
    for recipe, peaks in ((gpipe(), [B] * S), (one_f_one_b(), [min(S - s, B) for s in range(S)])):
        timeline = simulate(recipe, S=S, B=B, forward=forward, backward=backward)
        assert timeline.makespan == (B + S - 1) * (forward + backward)
        assert timeline.peak_activations == peaks
        assert timeline.activation_receives == [0] + [B] * (S - 1)
        assert timeline.gradient_receives == [B] * (S - 1) + [0]


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_1f1b_is_the_textbook_list(S: int, B: int, forward: int, backward: int) -> None:
    """Stage s: S - s - 1 forwards to warm up, then one forward and one backward in turns."""
    timeline = simulate(one_f_one_b(), S=S, B=B, forward=forward, backward=backward)
    for s, jobs in enumerate(timeline.jobs_of):
        warm_up = min(S - s - 1, B)
        forwards = [(s, b, "F") for b in range(B)]
        backwards = [(s, b, "B") for b in range(B)]
        steady = [job for pair in zip(forwards[warm_up:], backwards, strict=False) for job in pair]
        assert jobs == forwards[:warm_up] + steady + backwards[B - warm_up :]


@given(S=sizes, extra=st.integers(0, 6))
def test_zero_bubble(S: int, extra: int) -> None:
    """ZB-H1 with F = B = W = 1: 3B + S - 1 against 1F1B's 3(B + S - 1), with activations of S micro-batches."""
    timeline = simulate(zero_bubble(), S=S, B=S + extra)
    assert timeline.makespan == 3 * (S + extra) + S - 1
    assert timeline.peak_activations == [S] * S


@given(W=st.integers(1, 6), rounds=st.integers(2, 4), more=st.integers(0, 5))
def test_v_schedule(W: int, rounds: int, more: int) -> None:
    """ZBV with F = B = W = 1: as little memory as ZB-H1, and one stage's steps of bubble instead of W of them."""
    timeline = simulate(v_schedule(), S=2 * W, B=rounds * W)
    assert timeline.makespan == 6 * rounds * W + W - 1
    assert timeline.peak_activations == [2 * W] * W
    crossings = [(r > 0) + (r < W - 1) for r in range(W)]  # down from above, up from below; the turn is none
    assert timeline.activation_receives == [rounds * W * count for count in crossings]
    ragged = simulate(v_schedule(), S=2 * W, B=rounds * W + more)
    assert ragged.makespan <= 1.06 * (6 * (rounds * W + more) + W - 1)
    assert max(ragged.peak_activations) == 2 * W


@given(V=st.integers(1, 3), W=st.integers(1, 5), rounds=st.integers(1, 4), forward=durations, backward=durations)
def test_interleaved(V: int, W: int, rounds: int, forward: int, backward: int) -> None:
    """A bubble of W - 1 of a stage's steps where 1F1B has W - 1 of a worker's, which are V times as long; the first
    worker's peak is that of its warm-up, and one more."""
    B = rounds * W
    timeline = simulate(interleaved(V), S=V * W, B=B, forward=forward, backward=backward)
    assert timeline.makespan == (V * B + W - 1) * (forward + backward)
    warm_ups = [2 * (W - r - 1) + (V - 1) * W for r in range(W)]
    assert timeline.peak_activations == [min(warm_up + 1, V * B) for warm_up in warm_ups]


@pytest.mark.parametrize(
    ("recipe", "S", "makespan", "peak"),
    [
        (gpipe(), 4, 30, 8),  # ScheduleGPipe
        (breadth_first(G=1, R=4), 8, 54, 16),  # ScheduleLoopedBFS
        (interleaved(2), 8, 54, 11),  # ScheduleInterleaved1F1B
    ],
    ids=repr,
)
def test_the_lists_of_torch(recipe: Recipe, S: int, makespan: int, peak: int) -> None:
    """Its lists for 4 ranks and 8 micro-batches, imported from torch 2.13, took this long, F, B and W one step each,
    and held as many activations to the end of W. Here each W follows its B at once, as it does in a whole backward."""
    placed = recipe.build(S, 8)

    def n(s: int, b: int, d: str) -> Any:
        return placed.n and placed.n(s, b, "F" if d == "F" else "B"), d == "W"

    timeline = simulate(Schedule(placed.w, n, policy="strict", directions=("F", "B", "W")), S=S, B=8)
    assert (timeline.W, timeline.makespan, max(timeline.peak_activations)) == (4, makespan, peak)


def test_zbv_is_torch_s() -> None:
    """ScheduleZBVZeroBubble's makespan and peak, for the same numbers."""
    timeline = simulate(v_schedule(), S=8, B=8)
    assert (timeline.W, timeline.makespan, max(timeline.peak_activations)) == (4, 51, 8)


def test_interleaved_needs_as_many_stages_as_it_places() -> None:
    with pytest.raises(ScheduleError, match=r"S = V\*W"):
        simulate(interleaved(2), S=7, B=2)
    with pytest.raises(ScheduleError, match=r"S = V\*W"):
        simulate(interleaved(2), S=8, B=2, W=3)


@given(S=sizes, waves=st.integers(2, 5), W=st.integers(1, 4), cost=durations)
def test_wavelet_data_parallel(S: int, waves: int, W: int, cost: int) -> None:
    """A wave allocates while the one before it frees: the memory of one wave and a stage, not of two."""
    timeline = simulate(wavelet_dp(waves), S=S, B=waves * W, forward=cost, backward=cost)
    assert (timeline.W, timeline.lanes) == (W, 2)
    assert timeline.makespan == S * (waves + 1) * cost
    assert timeline.peak_activations == [S + 1] * W
    gang = simulate(ddp(), S=S, B=W, forward=2 * cost, backward=2 * cost, activation_sizes=2)
    assert gang.peak_activations == [2 * S] * W
    assert [timeline.lane[0, b, "F"] for b in range(waves * W)] == [b // W % 2 for b in range(waves * W)]


@given(N=sizes, forward=durations, backward=durations)
def test_wavelet_model_parallel(N: int, forward: int, backward: int) -> None:
    """Figure 10: all workers on the same stage in a cycle; as fast as data parallelism, and more on the wire."""
    timeline = simulate(wavelet_mp(), S=N, B=N, forward=forward, backward=backward)
    assert timeline.makespan == N * (forward + backward)
    assert timeline.peak_activations == [N] * N
    assert timeline.activation_receives == [N - 1 if N > 1 else 0] * N
    assert all(timeline.start[s, b, "F"] == s * forward for s in range(N) for b in range(N))
    for cycle in range(N):
        assert timeline.worker[cycle, (1 - cycle) % N, "F"] == 1 % N  # GPU 1 of the paper's example


@given(S=sizes, B=sizes, forward=durations, backward=durations)
def test_lpp_lies_between_gpipe_and_ddp(S: int, B: int, forward: int, backward: int) -> None:
    costs: dict[str, Any] = {"S": S, "B": B, "forward": forward, "backward": backward}
    assert same(simulate(lpp(G=1, R=S), **costs), simulate(gpipe(), **costs))
    assert simulate(lpp(G=B, R=1), **costs).makespan == simulate(ddp(), **costs).makespan
    assert dict(simulate(lpp(G=B, R=1), **costs).worker) == dict(simulate(ddp(), **costs).worker)
    assert same(simulate(breadth_first(G=2, R=2), **costs), simulate(lpp(G=2, R=2), **costs))


@given(
    R=st.integers(1, 5), loops=st.integers(1, 3), G=st.integers(1, 3), m=st.integers(1, 8),
    forward=durations, backward=durations,
)  # fmt: skip
def test_the_latency_law_of_lpp(R: int, loops: int, G: int, m: int, forward: int, backward: int) -> None:
    """The paper has S + m - 1, m = B / G; that holds for m <= R, and beyond it workers are what limits."""
    S = R * loops
    for recipe in (lpp(G, R), fslpp(G, R)):
        timeline = simulate(recipe, S=S, B=m * G, forward=forward, backward=backward)
        law = S + m - 1 if m <= R else m * loops + R - 1
        assert timeline.makespan == law * (forward + backward)
        assert max(timeline.peak_activations) <= loops * m


def test_depth_first_takes_what_has_waited_longest() -> None:
    """One worker, which has the second micro-batch before it from the start, and the second stage later."""
    (jobs,) = simulate(depth_first(G=1, R=1), S=2, B=2).jobs_of
    assert jobs[:4] == [(0, 0, "F"), (0, 1, "F"), (1, 0, "F"), (1, 1, "F")]


@given(S=sizes, G=sizes, R=sizes)
def test_owners_of_fslpp(S: int, G: int, R: int) -> None:
    """Spread evenly; the paper's own owners coincide as soon as S > lcm(G, R)."""
    spread, paper = (simulate(fslpp(G, R, owner=owner), S=S, B=1) for owner in ("spread", "paper"))
    assert max(spread.weight_storage) == math.ceil(S / (G * R))
    assert max(paper.weight_storage) == math.ceil(S / math.lcm(G, R))
    assert sum(spread.weight_storage) == sum(paper.weight_storage) == S
    if R >= S:
        assert dict(spread.owner) == dict(paper.owner)


def test_owners_of_fslpp_for_the_paper_s_own_example() -> None:
    """G = R = 2: "no worker stores weights for more than one stage" does not hold for S = W = 4."""
    paper = simulate(fslpp(2, 2, owner="paper"), S=4, B=2)
    assert [paper.owner[s, 0, "F"] for s in range(4)] == [0, 3, 0, 3]
    assert paper.weight_storage == [2, 0, 0, 2]
    assert simulate(fslpp(2, 2), S=4, B=2).weight_storage == [1, 1, 1, 1]


@given(entry=st.sampled_from(GROUPED), S=sizes, B=sizes, G=sizes, W=st.integers(1, 12))
def test_groups_fill_the_workers(entry: Any, S: int, B: int, G: int, W: int) -> None:
    assume(W % G == 0)
    assert same(simulate(entry(G), S=S, B=B, W=W), simulate(entry(G, W // G), S=S, B=B))
    assert G * max(1, S // G) == simulate(entry(G), S=S, B=B).W


def test_names() -> None:
    assert [repr(recipe) for recipe in (gpipe(), lpp(4), fslpp(2, 3), fslpp(2, owner="paper"))] == [
        "gpipe",
        "lpp(G=4)",
        "fslpp(G=2, R=3)",
        "fslpp(G=2, owner='paper')",
    ]


@pytest.mark.parametrize("W", [8, 9])
def test_workers_that_nothing_runs_on_are_idle(W: int) -> None:
    timeline = simulate(gpipe(), S=8, B=8, W=W)
    assert timeline.utilisation == pytest.approx(16 * 8 / (W * 30))
