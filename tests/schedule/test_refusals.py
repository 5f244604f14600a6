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
        with pytest.raises(ScheduleError, match=f"is on worker {nowhere!r}, .* the ints 0 to"):
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
    for place in (3, None, (0, 0, 0), (0,)):
        with pytest.raises(ScheduleError, match=r"w\(0, 0, 'F'\) is .*, and has to be \(owner, worker\)"):
            simulated(Schedule(lambda s, b, d, at=place: at))  # type: ignore[misc]


def test_a_function_that_cannot_be_asked_names_the_job() -> None:
    """And keeps its cause, whose traceback ends in the user's line."""
    with pytest.raises(ScheduleError, match=r"w of job \(2, 0, 'F'\) raises KeyError: 2") as caught:
        simulated(Schedule(lambda s, b, d: ({0: 0, 1: 1}[s], s)))
    assert isinstance(caught.value.__cause__, KeyError)
    two: Any = lambda s, b: s  # noqa: E731
    for role in ("n", "pred", "inputs", "lane"):
        with pytest.raises(ScheduleError, match=rf"{role} of job .* {role} has to be a function of \(s, b, d\)"):
            simulated(Schedule(on_its_stage, **{role: two}))
    with pytest.raises(ScheduleError, match=r"the cost of job \(0, 0, 'F'\) .* a function of \(s, b\)"):
        simulated(gpipe(), forward=lambda s: s)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (gpipe, r"gpipe is no function of \(S, B, W\): .* called first, as gpipe\(\) is"),
        (lambda S, B: Schedule(on_its_stage), r"is no function of \(S, B, W\)"),
        (lambda S, B, W: gpipe(), "gives gpipe for S=3, B=2, W=None, and not a Schedule"),
        ("gpipe", "'gpipe' is no schedule; give one"),
        (None, "None is no schedule"),
    ],
)
def test_what_is_no_schedule(schedule: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulated(schedule)


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


def test_many_workers_that_wait_are_not_all_told() -> None:
    with pytest.raises(ScheduleError, match=r"of worker 15 waits for .*, and 84 more; look at n") as caught:
        simulate(Schedule(on_its_stage, lambda s, b, d: (d == "F", b), policy="strict"), S=100, B=1)
    assert "of worker 17" not in str(caught.value)


def test_a_predecessor_that_is_not_there() -> None:
    with pytest.raises(ScheduleError, match=r"pred\(0, 0, 'F'\) names \(0, -1, 'F'\), and there is no such job"):
        simulated(Schedule(on_its_stage, pred=lambda s, b, d: [(s, b - 1, d)]))
    for job in ((0, "F"), (0, "F", 0), (0.5, 0, "F"), (0, 0, "f"), "F"):
        with pytest.raises(
            ScheduleError, match=r"names .*, and there is no such job; .* with s < 3, b < 2 and d of F, B"
        ):
            simulated(Schedule(on_its_stage, pred=lambda s, b, d, one=job: [one]))  # type: ignore[misc]
    with pytest.raises(ScheduleError, match=r"pred\(0, 0, 'F'\) is 3, and has to be a list of jobs"):
        simulated(Schedule(on_its_stage, pred=lambda s, b, d: 3))  # type: ignore[arg-type, return-value]
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
        ({"W": 0}, "W=0"),
        ({"S": 2.5}, "S=2.5"),
        ({"S": "3"}, "S='3'"),
        ({"forward": [1, 2]}, "2 numbers for S=3 stages"),
        ({"backward": -1}, "the cost of B of stage 0 is -1"),
        ({"backward": [1, 1, math.nan]}, "the cost of B of stage 2 is nan"),
        ({"forward": math.inf}, "stage 0 is inf"),
        ({"forward": "1"}, "stage 0 is '1'"),
        ({"forward": None}, "stage 0 is None"),
        ({"backward": lambda s, b: 1 - s}, r"job \(2, 0, 'B'\) takes -1"),
        ({"activation_time": -1}, "activation_time of stage 0 is -1"),
        ({"gradient_time": lambda s, b: -1}, "a transfer takes -1"),
        ({"activation_sizes": -1}, "activation_sizes of stage 0 is -1"),
        ({"weight_sizes": [1]}, "weight_sizes has 1 numbers for S=3 stages"),
    ],
)
def test_numbers_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulated(gpipe(), **changes)


@pytest.mark.parametrize(
    ("entry", "parameters", "words"),
    [
        (lpp, {"G": 0}, "lpp has G=0"),
        (lpp, {"G": 2.0}, "lpp has G=2.0"),
        (lpp, {"G": "2"}, "lpp has G='2'"),
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
    with pytest.raises(
        ScheduleError, match=r"values that sort: '<' .* n\(0, 0, 'F'\) is 0, n\(1, 0, 'F'\) is \('F', 0\)"
    ):
        simulated(Schedule(on_its_stage, lambda s, b, d: (d, b) if s else b))


def test_words_that_are_not_known() -> None:
    with pytest.raises(ScheduleError, match="greedy, pending, strict"):
        Schedule(on_its_stage, policy="lazy")
    with pytest.raises(ScheduleError, match="spread, paper"):
        fslpp(G=2, owner="nobody")


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([], "lists no job"),
        ([(0, 0)], r"lists \(0, 0\), which is no job"),
        ([(-1, 0, "F")], r"lists \(-1, 0, 'F'\), which is no job"),
        ([(0, 0, "F"), (1, 0, "F"), (0, 0, "F")], r"lists a job twice: \(0, 0, 'F'\)"),
        ([(0, 0, "F"), (1, 1, "F")], "jobs of S=2 and B=2, and not of S=3 and B=2"),
        ([(2, 2, "F")], "jobs of S=3 and B=3, and not of S=3 and B=2"),
    ],
)
def test_jobs_that_are_none(jobs: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulated(Schedule(on_its_stage, jobs=jobs))


@pytest.mark.parametrize(
    ("directions", "words"),
    [
        ((), "each once"),
        (("F", "F"), "each once"),
        (("F", "Q"), "what a job 'Q' reads is not known .* give `inputs`"),
        (("F", "W"), "W is the rest of a backward, and needs B"),
    ],
)
def test_directions_that_mean_nothing(directions: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        Schedule(on_its_stage, directions=directions)


def test_the_error_is_of_the_project_and_a_value_error() -> None:
    assert issubclass(ScheduleError, BppsaError)
    assert issubclass(ScheduleError, ValueError)


def test_an_iterator_that_ends_in_a_function_is_an_error() -> None:
    """It would end a walk over the jobs, and leave the others out."""
    owners = iter(range(3))
    schedule = Schedule(w=lambda s, b, d: (next(owners), 0))
    with pytest.raises((StopIteration, RuntimeError)):
        simulate(schedule, S=2, B=2)
