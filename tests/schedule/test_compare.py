from __future__ import annotations

import pytest

from bppsa.errors import ScheduleError
from bppsa.schedule import Schedule, compare, ddp, fsdp, gpipe, lpp, one_f_one_b, simulate, zero_bubble


def test_a_row_is_what_the_timeline_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare([gpipe(), lpp(G=2), fsdp()], S=4, B=4, forward=1, backward=2, weight_sizes=3)
    assert capsys.readouterr().out == f"{found}\n"
    for recipe, row in zip((gpipe(), lpp(G=2), fsdp()), found.rows, strict=True):
        timeline = simulate(recipe, S=4, B=4, forward=1, backward=2, weight_sizes=3)
        assert (row.schedule, row.workers, row.makespan) == (recipe.name, timeline.W, timeline.makespan)
        assert row.bubble == timeline.bubble
        assert row.activations == max(timeline.peak_activations)
        assert row.weight_receives == max(timeline.weight_receives)
        received = (timeline.activation_receives, timeline.gradient_receives, timeline.weight_receives)
        assert row.receives == max(map(sum, zip(*received, strict=True)))
    assert found.rows[2].memory == 4 + 3 + 3  # activations, its own stage, the one it fetched
    lines, legend = str(found).splitlines()[:4], str(found).splitlines()[4:]
    assert len(set(map(len, lines))) == 1
    assert "bubble %" in lines[0]
    assert legend[0].startswith("makespan in jobs; bubble: the share of the workers' time")
    assert "in activations like both" in legend[1]


def test_all_do_the_same_work_beside_a_split_backward() -> None:
    alone = compare([one_f_one_b()], S=4, B=8, backward=2, weight=1)
    beside = compare([one_f_one_b(), zero_bubble()], S=4, B=8, backward=1, weight=1)
    assert alone.rows[0].makespan == beside.rows[0].makespan == 3 * (8 + 3)
    assert beside.rows[1].makespan == 3 * 8 + 4 - 1
    assert "backward + weight" in str(beside)
    assert "backward + weight" not in str(alone)


def test_what_cannot_run_is_said_and_the_rest_is_compared() -> None:
    found = compare([lpp(G=3), ddp()], S=4, B=4, W=4)
    assert [row.schedule for row in found.rows] == ["ddp"]
    assert "W = G*R" in str(found)
    with pytest.raises(ScheduleError, match=r"can run: lpp\(G=3\): .*W = G\*R"):
        compare([lpp(G=3)], S=4, B=4, W=4)
    with pytest.raises(ScheduleError, match=r"can run: the cost of F has 1 numbers for S=4 stages$"):
        compare([gpipe(), ddp(), fsdp()], S=4, B=4, forward=[1])
    with pytest.raises(ScheduleError, match="none is given"):
        compare([], S=4, B=4)


def test_the_first_stage_and_the_last_receive_half() -> None:
    """One the gradients, the other the activations: no worker of two receives both."""
    (row,) = compare([gpipe()], S=2, B=3).rows
    assert (row.activation_receives, row.gradient_receives, row.receives) == (3, 3, 3)


def test_schedules_of_ones_own_have_a_name() -> None:
    def mine(S: int, B: int, W: int | None = None) -> Schedule:
        return Schedule(lambda s, b, d: (0, 0))

    assert [row.schedule for row in compare([mine, mine(2, 2)], S=2, B=2).rows] == ["mine", "Schedule"]
