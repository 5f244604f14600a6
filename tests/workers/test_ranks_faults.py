"""What fails on one rank raises on every rank, in time; the next step is exact, and after a death there is none."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from torch import Tensor, nn

import bppsa
from bppsa.errors import WorkerError
from bppsa.schedule import Recipe, fsdp, lpp, one_f_one_b, zero_bubble
from tests.workers import faults
from tests.workers.faults import Armed
from tests.workers.ranks import run_ranks

LIMIT = 10.0  # seconds


SCHEDULES: dict[str, Recipe] = {
    "1f1b": one_f_one_b(),
    "fsdp": fsdp(),
    "lpp": lpp(G=2),
    "zero bubble": zero_bubble(),
}


def compiled_for(net: nn.Sequential, schedule: str, microbatches: int = 4) -> Any:
    own = copy.deepcopy(net)
    return bppsa.compile(
        own,
        schedule=SCHEDULES[schedule],
        stages=list(own),
        microbatches=microbatches,
        loss_fn=faults.loss_fn,
        example_inputs=faults.batch()[0],
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
