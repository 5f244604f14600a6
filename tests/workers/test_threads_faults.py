"""What fails in a thread raises in the caller, who may go on; an interrupt waits only for the jobs that run."""

from __future__ import annotations

import copy
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

import bppsa
from bppsa.errors import WorkerError
from bppsa.schedule import Recipe, ddp, lpp, one_f_one_b, zero_bubble
from tests.workers import faults
from tests.workers.faults import Armed


def compiled_for(net: Any, schedule: Recipe, microbatches: int = 4) -> Any:
    """The loss's weight is given, so that the loss runs in jobs alone: no tracing of it sets off what is armed."""
    own = copy.deepcopy(net)
    return bppsa.compile(
        own,
        schedule=schedule,
        stages=list(own),
        microbatches=microbatches,
        loss_fn=faults.loss_fn,
        loss_weight=len,
    )


@pytest.mark.parametrize("kind", ["F", "B", "W", "loss"])
@pytest.mark.parametrize("schedule", [one_f_one_b(), zero_bubble(), lpp(G=2), ddp()], ids=repr)
def test_an_exception_is_raised_in_the_caller(schedule: Recipe, kind: str) -> None:
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, schedule)
    compiled.step(x, target)
    compiled.zero_grad()
    Armed.arm(kind, 0 if kind == "loss" else 2, faults.explode)
    with pytest.raises(WorkerError) as caught:
        compiled.step(x, target)
    job = {"loss": "3F", "W": "2W" if repr(schedule) == "zero_bubble" else "2B"}.get(kind, f"2{kind}")
    assert re.match(rf"worker \d failed in job {job}\d: ZeroDivisionError: of the test", str(caught.value))
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert "in explode" in "".join(traceback.format_exception(cause))
    assert all(parameter.grad is None for parameter in compiled.parameters())
    compiled.step(x, target)
    assert faults.exact(net, compiled, x, target)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background, whose processes ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("schedule", [one_f_one_b(), ddp()], ids=repr)
def test_an_interrupt_ends_all_threads(schedule: Recipe) -> None:
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, schedule)
    compiled.step(x, target)
    compiled.zero_grad()
    Armed.arm("F", 2, faults.interrupt)
    with pytest.raises(KeyboardInterrupt):
        compiled.step(x, target)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bppsa worker")]
    assert all(parameter.grad is None for parameter in compiled.parameters())
    compiled.step(x, target)
    assert faults.exact(net, compiled, x, target)


@pytest.mark.usefixtures("interruptible")
def test_one_worker_is_interrupted() -> None:
    """Its jobs run in the calling thread."""
    net, (x, target) = faults.model(), faults.batch()
    compiled = compiled_for(net, ddp(), microbatches=1)
    Armed.arm("F", 2, faults.interrupt)
    with pytest.raises(KeyboardInterrupt):
        compiled.step(x, target)
    compiled.step(x, target)
    assert faults.exact(net, compiled, x, target)
