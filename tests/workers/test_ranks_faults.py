"""What fails on one rank raises on every rank, in time; the next step is exact, and after a death there is none."""

from __future__ import annotations

import copy
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import InputError, ScheduleError, WorkerError
from bppsa.runtime.transport import group
from bppsa.schedule import Recipe, fsdp, lpp, one_f_one_b, zero_bubble
from tests.breadth import alternate
from tests.workers import faults
from tests.workers.faults import Armed
from tests.workers.ranks import join, run_ranks

LIMIT = 10.0  # seconds


SCHEDULES: dict[str, Recipe] = {
    "1f1b": one_f_one_b(),
    "fsdp": fsdp(),
    "lpp": lpp(G=2),
    "zero bubble": zero_bubble(),
}


def compiled_for(net: nn.Sequential, schedule: str, microbatches: int = 4, seed: int = 0) -> Any:
    own = copy.deepcopy(net)
    return bppsa.compile(
        own,
        schedule=SCHEDULES[schedule],
        stages=list(own),
        microbatches=microbatches,
        seed=seed,
        loss_fn=faults.loss_fn,
        loss_weight=len,  # so that a fault is of a step, and not of a look at what the loss counts
        example_inputs=faults.batch(width=own[0].weight.shape[1])[0],
    )


def failing(compiled: Any, x: Tensor, target: Tensor) -> tuple[WorkerError, float]:
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        compiled.step(x, target)
    return caught.value, time.monotonic() - start


# Exceptions.


class Told(NamedTuple):
    """What a rank has to say of a step that failed, and of the next one."""

    kind: str
    here: bool  # whether the exception was raised on this rank
    text: str
    cause: str
    seconds: float
    clean: bool  # whether .grad was left alone
    exact: bool


def exceptions(rank: int, schedule: str, microbatches: int, kinds: Sequence[str]) -> list[Told]:
    """Each kind of job of each layer raises once; between these, steps."""
    net, (x, target), told = faults.model(), faults.batch(), []
    compiled = compiled_for(net, schedule, microbatches)
    for kind in kinds:
        for layer in [0] if kind == "loss" else [1, 3]:
            Armed.arm(kind, layer, faults.explode)
            error, seconds = failing(compiled, x, target)
            clean = all(parameter.grad is None for parameter in compiled.parameters())
            here = Armed.went_off
            Armed.disarm()
            compiled.step(x, target)
            cause = type(error.__cause__).__name__
            told.append(Told(kind, here, str(error), cause, seconds, clean, faults.exact(net, compiled, x, target)))
            compiled.zero_grad()
    return told


@pytest.mark.parametrize(
    ("size", "schedule", "microbatches", "kinds"),
    [(4, "1f1b", 5, "F B W loss"), (2, "lpp", 4, "F B"), (4, "zero bubble", 3, "B W"), (3, "fsdp", 3, "F W")],
)
def test_an_exception_is_raised_on_every_rank(size: int, schedule: str, microbatches: int, kinds: str) -> None:
    for scenario in zip(*run_ranks(exceptions, size, schedule, microbatches, kinds.split()), strict=True):
        jobs = {"loss": "F", "W": "W" if schedule == "zero bubble" else "B"}
        for rank, told in enumerate(scenario):
            named = re.match(r"worker (\d) failed in job \d([FBW])\d: ZeroDivisionError: of the test", told.text)
            assert named, told.text
            assert scenario[int(named[1])].here
            assert named[2] == jobs.get(told.kind, told.kind)
            if int(named[1]) == rank:
                assert told.cause == "ZeroDivisionError"
            else:
                assert "in explode" in told.text
            assert told.seconds < LIMIT
            assert told.clean
            assert told.exact


def late_news(rank: int) -> bool:
    """The first step fails on rank 1; until then rank 3 has not heard all that the ranks tell each other of their
    weights."""
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, "1f1b")
    if rank == 3:
        hear, first = group._HANDLERS[group._GATHER], iter([0.5])

        def hear_late(*news: Any) -> None:
            delay = next(first, 0.0) if news[1].rank == 2 else 0.0
            threading.Timer(delay, hear, news).start() if delay else hear(*news)

        group._HANDLERS[group._GATHER] = hear_late
    Armed.arm("F", 1, faults.explode)
    failing(compiled, x, target)
    Armed.disarm()
    compiled.step(x, target)
    return faults.exact(net, compiled, x, target)


@pytest.mark.slow
def test_a_first_step_may_fail_before_all_have_told_of_their_weights() -> None:
    assert run_ranks(late_news, 4) == [True] * 4


def draws_after(rank: int, late: bool) -> float:
    """The loss of the step after one that failed on rank 0; late: before rank 1 had begun it."""
    x, target = faults.batch()
    torch.manual_seed(0)
    drops = nn.Sequential(faults.Layer(1), nn.Dropout(0.5))
    compiled = compiled_for(nn.Sequential(faults.Layer(0), drops), "1f1b")
    compiled.step(x, target)
    Armed.arm("F", 0, faults.explode)
    time.sleep(0.5 * (late == (rank == 1)))
    failing(compiled, x, target)
    Armed.disarm()
    return float(compiled.step(x, target))


def test_a_step_that_failed_counts_for_draws_on_every_rank() -> None:
    assert run_ranks(draws_after, 2, False) == run_ranks(draws_after, 2, True)


# Deaths.


class Left(NamedTuple):
    """What a rank that lives has to say of the death of another, and of the step after it."""

    text: str
    seconds: float
    later: str


def deaths(rank: int, schedule: str, microbatches: int, victim: int, kind: str, layer: int) -> Left:
    """A step, and a second one in which the victim dies: in a job, or before its first one where kind is ""."""
    compiled = compiled_for(faults.model(), schedule, microbatches)
    x, target = faults.batch()
    compiled.step(x, target)
    if rank == victim:
        Armed.arm(kind, layer, faults.die)
        Armed.pass_by("", layer)
    error, seconds = failing(compiled, x, target)
    later, _ = failing(compiled, x, target)
    return Left(str(error), seconds, str(later))


@pytest.mark.parametrize(
    ("size", "schedule", "microbatches", "victim", "kind", "layer"),
    [
        (4, "1f1b", 5, 0, "F", 0),
        (4, "1f1b", 5, 2, "B", 2),
        (4, "1f1b", 5, 3, "", 3),
        (4, "zero bubble", 3, 1, "W", 1),
        (3, "fsdp", 3, 0, "F", 1),
        (2, "fsdp", 2, 0, "", 0),
    ],
)
def test_a_death_is_raised_on_every_rank(
    size: int, schedule: str, microbatches: int, victim: int, kind: str, layer: int
) -> None:
    found = run_ranks(deaths, size, schedule, microbatches, victim, kind, layer, dies=[victim])
    assert found.pop(victim) is None
    job = rf" in job {layer}{kind}\d" if kind else ""
    for left in found:
        assert re.match(f"worker {victim} died{job}: its connection is closed", left.text), left.text
        assert "the process group must be rebuilt" in left.text
        assert left.seconds < LIMIT
        assert left.later == left.text


def plain_script(rank: int, place: str) -> None:
    """Rank 0 is killed in a job while rank 1 waits for weights from it; rank 1 catches nothing nor cleans up."""
    join(rank, 2, Path(place), timedelta(minutes=30))
    x, target = faults.batch(width=1000)
    compiled = compiled_for(faults.model(width=1000), "fsdp", 2)
    compiled.step(x, target)
    if rank == 0:
        Armed.arm("F", 2, faults.die)
    compiled.step(x, target)


@pytest.mark.slow
def test_a_script_ends_on_its_own(tmp_path: Path) -> None:
    """With an interpreter that shuts down, which the other tests' processes leave out."""
    program = "from tests.workers.test_ranks_faults import plain_script; plain_script({}, {!r})"
    scripts = [program.format(rank, str(tmp_path / "place")) for rank in range(2)]
    ranks = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for script in scripts]
    assert ranks[0].wait() == -signal.SIGKILL
    start = time.monotonic()
    said = ranks[1].communicate()[1]
    assert ranks[1].returncode == 1
    assert "worker 0 died in job 2F0" in said
    assert time.monotonic() - start < LIMIT


# Neither.


def slow(rank: int, stops: bool) -> bool:
    """A job of rank 1 takes long, or its process is stopped within it."""
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, "1f1b")
    Armed.arm("B", 1, faults.stop_and_go if stops else faults.dawdle)
    compiled.step(x, target)
    return faults.exact(net, compiled, x, target)


@pytest.mark.slow
@pytest.mark.parametrize("stops", alternate([True, False]))
def test_a_slow_worker_is_no_fault(stops: bool) -> None:
    assert run_ranks(slow, 4, stops) == [True] * 4


# What differs.


def differing(rank: int) -> list[str]:
    """Each time rank 1 compiles something else."""
    odd, texts = rank == 1, []
    net, wide = faults.model(), faults.model(width=6 if odd else 4)
    tries: list[Callable[[], Any]] = [
        lambda: compiled_for(wide, "1f1b"),
        lambda: compiled_for(net, "1f1b", 6 if odd else 4),
        lambda: compiled_for(net, "zero bubble" if odd else "1f1b"),
        lambda: compiled_for(net if odd else faults.model(layers=5), "1f1b"),
        lambda: compiled_for(net, "1f1b", seed=int(odd)),
    ]
    for one in tries:
        with pytest.raises((ScheduleError, WorkerError)) as caught:
            one()
        texts.append(str(caught.value))
    return texts


def test_ranks_that_compile_something_else_are_named() -> None:
    for rank, (model, microbatches, schedule, layers, seed) in enumerate(run_ranks(differing, 4)):
        for text in (model, microbatches, schedule, seed):
            assert text.startswith("the ranks were given different work; ")
        assert "0.weight: [4, 4] torch.float64, trained, in stage 0 on worker 0 and 2 and 3, [6, 6]" in model
        assert "microbatches: 4 on worker 0 and 2 and 3, 6 on worker 1" in microbatches
        assert "the program of the schedule: " in schedule
        assert "there are W=4 workers" in layers  # which 5 stages do not fit, and rank 1 has not got
        assert rank != 1 or re.match(r"worker [023] failed in compile: bppsa.errors.ScheduleError: job", layers)
        assert "seed: 0 on worker 0 and 2 and 3, 1 on worker 1" in seed


def odd_calls(rank: int) -> list[str]:
    """Each time rank 1 gives other arguments, or makes another call; between these, steps."""
    odd, texts = rank == 1, []
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, "1f1b")
    nothing = x[:0]
    tries: list[Callable[[], Any]] = [
        lambda: compiled.step(*faults.batch(7)) if odd else compiled.step(x, target),
        lambda: compiled.step(x.float(), target) if odd else compiled.step(x, target),
        lambda: compiled.step(x, target, return_outputs=odd),
        lambda: compiled.full_state_dict() if odd else compiled.step(x, target),
        lambda: compiled.step(nothing, nothing) if odd else compiled.step(x, target),
        lambda: compiled.step(x.flip(0) if odd else x, target),
        lambda: compiled.step(x, target.flip(0) if odd else target),
        lambda: compiled(x + 1 if odd else x),
    ]
    for one in tries:
        with pytest.raises((WorkerError, InputError)) as caught:
            one()
        texts.append(str(caught.value))
        compiled.step(x, target)
        texts.append(str(faults.exact(net, compiled, x, target)))
        compiled.zero_grad()
    return texts


def test_ranks_that_call_something_else_are_named() -> None:
    for rank, texts in enumerate(run_ranks(odd_calls, 4)):
        assert texts[1::2] == ["True"] * 8
        rows, dtype, outputs, call, nothing, *others = texts[::2]
        for text in (rows, dtype, outputs, call, *others):
            assert re.match(r"the ranks run step \d+ on different work; ", text)
        assert "(7, 4)" in rows
        assert "torch.float32" in dtype
        assert "return_outputs: " in outputs
        assert "full_state_dict" in call
        assert "no tensor with rows" in nothing
        assert all("compile with data='local'" in text for text in others)
        assert rank == 1 or "worker 1 failed in a call of the model: bppsa.errors.InputError" in nothing


def replicas(rank: int) -> str:
    """Owners of the same weights that start from different values."""
    compiled = compiled_for(faults.model(seed=rank), "lpp")
    with pytest.raises((ScheduleError, WorkerError)) as caught:  # found here, or told by the other
        compiled.step(*faults.batch())
    return str(caught.value)


def test_replicas_with_different_values_are_named() -> None:
    for text in run_ranks(replicas, 2):
        assert "the values of 0.weight, and those of 3 more are not the same on worker 0 and 1" in text
