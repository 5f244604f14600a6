"""What a step measures beside what the simulator says, and what cannot be run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bppsa import compile
from bppsa.errors import ScheduleError
from bppsa.schedule import Schedule, blelloch, gpipe, interleaved, lpp, pipedream, wavelet_mp
from bppsa.schedule.programs.program import Action
from tests.workers import zoo


def compiled_for(schedule: Any, stages: int | None, microbatches: int, workers: int | None = None) -> Any:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.Tanh())))
    return compile(
        model,
        schedule=schedule,
        stages=stages,
        microbatches=microbatches,
        workers=workers,
        loss_fn=nn.MSELoss(),
        example_inputs=torch.randn(8, 4),
    )


@pytest.mark.parametrize("name", zoo.CASES)
def test_jobs_run_where_and_as_the_simulator_says(name: str) -> None:
    case = zoo.CASES[name]
    compiled = compiled_for(case.schedule, case.stages, case.microbatches, case.workers)
    x = torch.randn(8, 4)
    for _ in range(3):
        compiled.step(x, x)
        simulated, measured = compiled.timeline, compiled.measured
        assert set(measured.jobs) == set(simulated.jobs)
        for job in simulated.jobs:
            assert measured.worker[job] == simulated.worker[job]
            assert measured.owner[job] == simulated.owner[job]
            assert 0 <= measured.start[job] < measured.end[job]
        assert by_lane(measured) == by_lane(simulated)
        for p, q in simulated.graph.edges():
            assert measured.end[simulated.jobs[p]] <= measured.start[simulated.jobs[q]]
        assert measured.weight_receives == simulated.weight_receives
        if simulated.lanes == 1:
            assert measured.peak_activations == simulated.peak_activations
        else:  # which of two lanes is ahead is not in the program: at most what both hold at their most
            assert all(m <= at_most(simulated, worker) for worker, m in enumerate(measured.peak_activations))


def by_lane(timeline: Any) -> dict[tuple[int, int], list[Action]]:
    """The order in which each lane runs its jobs."""
    found: dict[tuple[int, int], list[Action]] = {}
    for worker, jobs in enumerate(timeline.jobs_of):
        for job in jobs:
            found.setdefault((worker, timeline.lane[job]), []).append(Action(*job))
    return found


def at_most(timeline: Any, worker: int) -> int:
    """Where every lane holds its most at the same time."""
    total = 0
    for (of, _), actions in by_lane(timeline).items():
        held = peak = 0
        for action in actions if of == worker else ():
            held += 1 if action.kind == "F" else -1
            peak = max(peak, held)
        total += peak
    return total


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zero_bubble", "fslpp"])
def test_the_prediction_is_the_same_program_with_the_times_it_took(name: str) -> None:
    case = zoo.CASES[name]
    compiled = compiled_for(case.schedule, case.stages, case.microbatches, case.workers)
    x = torch.randn(8, 4)
    compiled.step(x, x)
    predicted, measured = compiled.predicted, compiled.measured
    assert by_lane(predicted) == by_lane(measured)
    assert predicted.durations == pytest.approx(measured.durations)
    assert 0 < predicted.makespan <= measured.makespan + 1e-9


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_are_as_many_micro_batches(rows: int) -> None:
    compiled = compiled_for(gpipe(), 3, 4)
    x = torch.randn(rows, 4)
    compiled.step(x, x)
    assert rows == compiled.measured.jobs.B
    assert compiled.timeline.jobs.B == 4


def apart(s: int, b: int, d: str) -> tuple[int, int]:
    return (s, s) if d == "F" else (s, 1 - s)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "workers", "said"),
    [
        (pipedream(), 3, 4, None, "take one_f_one_b"),
        (blelloch(2), None, 4, None, r"has no nn\.RNN, nn\.GRU or nn\.LSTM.*gpipe"),
        (wavelet_mp(), 2, 4, None, "S=2 stages, B=4 micro-batches and W=2 workers; give stages=2, microbatches=2"),
        (wavelet_mp(), 4, 4, 2, "S=4 stages, B=4 micro-batches and W=2 workers; give stages=2, microbatches=2"),
        (Schedule(w=apart), 2, 4, None, "let w give both the same"),
        (interleaved(2), 3, 4, None, r"S=3 stages are not V=2 .* S = V\*W"),
        (lpp(2), 2, 4, 3, r"W = G\*R has to hold"),
        (gpipe, 2, 4, None, "is called first"),
    ],
)
def test_what_cannot_run_says_so_when_it_is_compiled(
    schedule: Any, stages: int | None, microbatches: int, workers: int | None, said: str
) -> None:
    with pytest.raises(ScheduleError, match=said):
        compiled_for(schedule, stages, microbatches, workers)


def test_nothing_is_measured_before_the_first_step() -> None:
    with pytest.raises(ScheduleError, match=r"call step\(\)"):
        _ = compiled_for(gpipe(), 2, 2).measured
