from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import (
    Recompute,
    Units,
    blelloch,
    gpipe,
    naive,
    one_f_one_b,
    search,
    simulate,
    v_schedule,
    zero_bubble,
)
from bppsa.schedule.compare import row
from bppsa.schedule.timeline import Timeline

from .factories import durations, scattered

sizes = st.integers(1, 5)
AGAIN, KEPT, FULL = [1, 0, Fraction(1, 2)], [2, 9, 1], [5, 9, 4]


def held(timeline: Timeline, worker: int, time: int) -> int:
    """By the definition: what is kept from F to B, and all from the start of B to its end, or W's."""
    last = "W" if "W" in timeline.jobs.directions else "B"
    total = 0
    for s, b, d in timeline.jobs:
        if d != "F" or timeline.worker[s, b, d] != worker or not timeline.start[s, b, "F"] <= time:
            continue
        if time < timeline.end[s, b, last]:
            total += FULL[s] if timeline.start[s, b, "B"] <= time else KEPT[s]
    return total


@given(scattered(3), st.integers(1, 3), durations, durations)
def test_a_backward_begins_with_its_forward_and_holds_all_from_there(recipe, B, forward, backward) -> None:
    timeline = simulate(
        recipe,
        S=3,
        B=B,
        forward=forward,
        backward=backward,
        activation_sizes=FULL,
        recompute=Recompute(again=AGAIN, kept=KEPT),
    )
    for s, b, d in timeline.jobs:
        if d == "B":
            assert timeline.end[s, b, d] - timeline.start[s, b, d] == backward + AGAIN[s] * forward
    events = {time for job in timeline.jobs for time in (timeline.start[job], timeline.end[job])}
    for worker in range(timeline.W):
        assert timeline.peak_activations[worker] == max(held(timeline, worker, time) for time in events)
    if not timeline.lanes > 1 and recipe.build(3, B).pred is None:
        assert timeline.utilisation <= timeline.bound() + 1e-12


def test_memory_of_recompute_against_none() -> None:
    plain = simulate(one_f_one_b(), S=4, B=8)
    full = simulate(one_f_one_b(), S=4, B=8, recompute=Recompute(kept=Fraction(1, 10)))
    assert plain.peak_activations == [4, 3, 2, 1]
    assert full.peak_activations == [Fraction(13, 10), Fraction(12, 10), Fraction(11, 10), 1]
    assert simulate(gpipe(), S=4, B=8, recompute="full").peak_activations == [1, 1, 1, 1]
    assert full.makespan == simulate(one_f_one_b(), S=4, B=8, backward=2).makespan
    assert "forward again and backward" in full.text()
    assert "again" not in plain.text()


def test_search_recomputes_where_memory_is_short() -> None:
    sized = {"activation_sizes": 1000, "weight_sizes": 100, "units": Units("ms", "MB")}
    pipelines = (naive(), gpipe(), one_f_one_b())
    with pytest.raises(ScheduleError, match=r"fits in memory 900 MB: naive needs least, 1100 MB; .*recompute=True"):
        search(4, 8, 4, memory_gb=0.9, **sized)
    best = search(4, 8, 4, memory_gb=5, recompute="auto", schedules=pipelines, **sized).ranked[0]
    assert (best.name, best.recompute) == ("one_f_one_b", None)
    short = search(4, 8, 4, memory_gb=2, recompute=[None, Recompute(kept=100)], schedules=pipelines, **sized)
    assert short.ranked[0].name == "one_f_one_b + full recompute"
    assert short.ranked[0].recompute == Recompute(kept=100)
    timeline = simulate(one_f_one_b(), S=4, B=8, backward=2, recompute=Recompute(kept=100), **sized)
    assert short.ranked[0].row == row("one_f_one_b + full recompute", timeline)


def test_what_cannot_be() -> None:
    with pytest.raises(ScheduleError, match=r"memory_gb= counts bytes, .* give activation_sizes"):
        search(4, 4, 4, memory_gb=24)
    with pytest.raises(ScheduleError, match=r"memory_gb='24' is no number"):
        search(4, 4, 4, memory_gb="24", units=Units(memory="MB"))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"memory= and memory_gb= say the same"):
        search(4, 4, 4, memory_gb=24, memory=3)
    with pytest.raises(ScheduleError, match=r"recompute='some' is none of True"):
        simulate(gpipe(), S=2, B=2, recompute="some")
    with pytest.raises(ScheduleError, match=r"recompute=\[\] tries nothing"):
        search(4, 4, 4, recompute=[])
    with pytest.raises(ScheduleError, match=r"kept has 2 numbers for S=3 stages"):
        simulate(gpipe(), S=3, B=2, recompute=Recompute(kept=[1, 2]))
    with pytest.raises(ScheduleError, match=r"recompute= is of schedules with a forward and a backward"):
        simulate(blelloch(K=4), S=4, B=2, recompute=True)


def test_a_split_backward_holds_all_until_its_weights_are_done() -> None:
    for recipe in (zero_bubble(), v_schedule()):
        kept = simulate(recipe, S=4, B=6, recompute=Recompute(kept=1))
        assert kept.peak_activations == simulate(recipe, S=4, B=6, backward=2).peak_activations
