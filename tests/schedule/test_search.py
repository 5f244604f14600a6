from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bppsa.errors import ScheduleError
from bppsa.schedule import Schedule, gpipe, search, simulate
from bppsa.schedule.compare import row

sizes = st.integers(1, 6)


@given(sizes, sizes, sizes, st.integers(2, 40))
def test_the_best_fits_and_nothing_that_fits_is_better(S: int, B: int, W: int, memory: int) -> None:
    everything = search(S, B, W)
    least = min(candidate.row.memory for candidate in everything.ranked if candidate.row)
    if least > memory:
        with pytest.raises(ScheduleError, match=f"fits in memory {memory}: .* needs least, {least}"):
            search(S, B, W, memory=memory)
        return
    found = search(S, B, W, memory=memory)
    fits = [c.row for c in found.ranked if c.row and c.row.memory <= memory]
    best = found.ranked[0]
    assert best.recipe is found.best
    assert best.lost == ""
    assert best.row in fits
    assert best.row.makespan == min(row.makespan for row in fits)
    assert all(candidate.lost for candidate in found.ranked[1:])
    assert str(found) == str(search(S, B, W, memory=memory))


def test_what_is_not_tried_is_said() -> None:
    assert "wavelet_dp: not tried, its gain" in str(search(4, 4, 4))
    assert "not tried" not in str(search(4, 4, 4, schedules=[gpipe()]))


def test_memory_is_a_number() -> None:
    with pytest.raises(ScheduleError, match="memory='12GB' is no number"):
        search(4, 4, 4, memory="12GB")  # type: ignore[arg-type]


def test_memory_decides() -> None:
    assert search(8, 16, 8).best.name == "fsdp"
    assert search(8, 16, 8, memory=9).best.name == "zero_bubble"
    assert search(8, 16, 8, memory=3).best.name == "naive"
    with pytest.raises(ScheduleError, match="naive needs least, 2; use more workers"):
        search(8, 16, 8, memory=1)


def test_traffic_decides_between_equals() -> None:
    assert search(4, 8, 4, memory=100).best.name == "fsdp"  # holds less than ddp
    assert search(4, 8, 4, memory=100, weight_sizes=0).best.name == "ddp"  # receives less


def test_sizes_and_costs_are_those_of_simulate() -> None:
    sized = {"activation_sizes": [1, 2, 4], "weight_sizes": [9, 1, 1], "forward": [1, 2, 3]}
    ranked = search(3, 6, 3, backward=2, weight=0, **sized).ranked
    candidate = next(candidate for candidate in ranked if candidate.recipe.name == "one_f_one_b")
    timeline = simulate(candidate.recipe, S=3, B=6, backward=2, **sized)
    assert candidate.row == row("one_f_one_b", timeline)
    assert candidate.row.memory == max(timeline.peak_memory)


def test_every_loser_has_its_reason() -> None:
    found = search(4, 4, 2, memory=20)
    reasons = {candidate.recipe.name: candidate.lost for candidate in found.ranked}
    assert reasons.pop(found.best.name) == ""
    assert "is on worker 2, and there are W=2 workers" in reasons["gpipe"]
    # both hold four activations; ddp four stages, fsdp its two and one that it fetched
    assert reasons["ddp"] == "the same makespan, but memory 8 against 7"
    assert reasons["lpp(G=1)"] == "makespan 27 against 24"
    assert all(f"{name}: {reason}" in str(found) for name, reason in reasons.items())


def test_ones_own_schedules_take_part() -> None:
    def mine(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(lambda s, b, d: (b % 2, b % 2))

    found = search(4, 4, 2, schedules=[gpipe(), mine, mine(4, 4)])
    assert [candidate.recipe.name for candidate in found.ranked] == ["Schedule", "mine", "gpipe"]
    assert found.ranked[1].lost == "equal to Schedule"
    assert simulate(found.best, S=4, B=4).makespan * 3 == 2 * found.ranked[0].row.makespan  # there, B and W are two


def test_what_is_wrong_with_all_is_said_once() -> None:
    with pytest.raises(ScheduleError, match=r"^W=0: a schedule has at least one"):
        search(4, 4, 0)
    with pytest.raises(ScheduleError, match=r"on W=4 workers: the cost of F has 1 numbers for S=4 stages$"):
        search(4, 4, 4, forward=[1])
