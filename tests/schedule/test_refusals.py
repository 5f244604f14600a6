"""Schedules that cannot run are refused, with the job and the workers named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bppsa.errors import BppsaError, ScheduleError
from bppsa.schedule import Schedule, blelloch, fslpp, gpipe, interleaved, lpp, simulate, wavelet_dp


def on_its_stage(s: int, b: int, d: str) -> tuple[int, int]:
    return s, s


def simulated(schedule: Any, **changes: Any) -> None:
    simulate(schedule, **{"S": 3, "B": 2} | changes)


def test_a_worker_out_of_range() -> None:
    with pytest.raises(ScheduleError, match=r"job \(2, 0, 'F'\) is on worker 2, and there are W=2 workers"):
        simulated(gpipe(), W=2)
    for nowhere in (-1, 1.5, None, "gpu:0"):
        with pytest.raises(ScheduleError, match=f"is on worker {nowhere}"):
            simulated(Schedule(lambda s, b, d, at=nowhere: (0, at)))  # type: ignore[misc]


def test_a_lane_below_zero() -> None:
    with pytest.raises(ScheduleError, match=r"job \(0, 1, 'F'\) is on lane -1"):
        simulated(Schedule(on_its_stage, lane=lambda s, b, d: -b))


def test_weights_that_nobody_owns() -> None:
    with pytest.raises(ScheduleError, match=r"job \(1, 0, 'F'\): the weights of stage 1 are owned by nobody"):
        simulated(Schedule(lambda s, b, d: (None if s == 1 else 0, 0)))  # type: ignore[arg-type, return-value]
    with pytest.raises(ScheduleError, match="by nobody; w names worker 5 as their owner, and there are W=3 workers"):
        simulated(Schedule(lambda s, b, d: (5, s), W=3))


def test_a_place_that_is_no_pair() -> None:
    with pytest.raises(ScheduleError, match=r"\(owner, worker\)"):
        simulated(Schedule(lambda s, b, d: s))  # type: ignore[arg-type, return-value]


def test_a_cycle() -> None:
    def pred(s: int, b: int, d: str) -> list[tuple[int, int, str]]:
        return [(1, 1, "B")] if (s, b, d) == (1, 1, "F") else []

    with pytest.raises(ScheduleError, match="in a cycle") as caught:
        simulated(Schedule(on_its_stage, pred=pred))
    for job in ((1, 1, "F"), (2, 1, "F"), (2, 1, "B"), (1, 1, "B")):
        assert str(job) in str(caught.value)
    assert "(0, " not in str(caught.value)
    with pytest.raises(ScheduleError, match="in a cycle"):
        simulated(Schedule(on_its_stage, pred=pred, policy="strict"))


def test_a_strict_order_that_waits_for_itself() -> None:
    """Worker 0 wants its backward of 0 before its forward of 1, worker 1 both forwards before a backward."""

    def n(s: int, b: int, d: str) -> int:
        return {0: [0, 2, 1, 3], 1: [0, 1, 2, 3]}[s][b + 2 * (d == "B")]

    with pytest.raises(ScheduleError, match="deadlock") as caught:
        simulate(Schedule(on_its_stage, n, policy="strict"), S=2, B=2)
    assert "(0, 0, 'B') of worker 0 waits for (1, 0, 'B') of worker 1, " in str(caught.value)
    assert "(1, 1, 'F') of worker 1 waits for (0, 1, 'F') of worker 0; " in str(caught.value)
    simulate(Schedule(on_its_stage, n), S=2, B=2)  # greedy, it runs


def test_a_predecessor_that_is_not_there() -> None:
    with pytest.raises(ScheduleError, match=r"pred\(0, 0, 'F'\) names \(0, -1, 'F'\), and there is no such job"):
        simulated(Schedule(on_its_stage, pred=lambda s, b, d: [(s, b - 1, d)]))
    with pytest.raises(ScheduleError, match=r"names \(0, 'F'\), and there is no such job"):
        simulated(Schedule(on_its_stage, pred=lambda s, b, d: [(0, "F")]))  # type: ignore[list-item]
    simulated(Schedule(on_its_stage, pred=lambda s, b, d: None))  # none


@pytest.mark.parametrize("recipe", [lpp(G=3), lpp(G=2, R=3), fslpp(G=3), lpp(G=5)], ids=repr)
def test_groups_that_do_not_fill_the_workers(recipe: Any) -> None:
    with pytest.raises(ScheduleError, match=r"W = G\*R"):
        simulated(recipe, W=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"S": 0}, "S=0"),
        ({"B": 0}, "B=0"),
        ({"forward": [1, 2]}, "2 numbers for S=3 stages"),
        ({"backward": -1}, r"\(0, 0, 'B'\) takes -1"),
        ({"backward": [1, 1, math.nan]}, r"\(2, 0, 'B'\) takes nan"),
    ],
)
def test_numbers_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulated(gpipe(), **changes)


@pytest.mark.parametrize(
    ("entry", "parameters", "words"),
    [
        (lpp, {"G": 0}, "lpp has G=0"),
        (fslpp, {"G": 2, "R": -1}, "fslpp has R=-1"),
        (interleaved, {"V": 0}, "interleaved has V=0"),
        (wavelet_dp, {"waves": 0}, "wavelet_dp has waves=0"),
        (blelloch, {"K": 0}, "blelloch has K=0"),
    ],
)
def test_parameters_that_count_nothing(entry: Any, parameters: dict[str, int], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        entry(**parameters)


def test_values_of_n_that_do_not_sort() -> None:
    with pytest.raises(ScheduleError, match=r"n\(s, b, d\) has to give values that sort: '<' not supported"):
        simulated(Schedule(on_its_stage, lambda s, b, d: (d, b) if s else b))


def test_words_that_are_not_known() -> None:
    with pytest.raises(ScheduleError, match="greedy, pending, strict"):
        Schedule(on_its_stage, policy="lazy")
    with pytest.raises(ScheduleError, match="spread, paper"):
        fslpp(G=2, owner="nobody")
    with pytest.raises(ScheduleError, match="lists a job twice"):
        simulated(Schedule(on_its_stage, jobs=[(0, 0, "F"), (0, 0, "F")]))


def test_the_error_is_of_the_project_and_a_value_error() -> None:
    assert issubclass(ScheduleError, BppsaError)
    assert issubclass(ScheduleError, ValueError)
