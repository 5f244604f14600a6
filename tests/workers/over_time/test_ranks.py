"""Time cut over ranks of a process group: gradients, outputs and evaluation are PyTorch's on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bppsa.errors import WorkerError
from bppsa.schedule.zoo.time_chunks import MIDDLES
from tests.breadth import chosen
from tests.workers.over_time import zoo
from tests.workers.over_time.support import EXACT, difference, over_time, plain, with_gradients
from tests.workers.ranks import run_ranks


def on_a_rank(rank: int, K: int) -> dict[str, float]:
    """Of each way to run a model, the difference from PyTorch."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)  # all ranks have the same weights and batch
    found = {}
    x, target = zoo.words(5, 4 * K + 3)
    for middle in sorted(MIDDLES):
        model, twin = zoo.Words(), zoo.Words()
        twin.load_state_dict(model.state_dict())
        expected = plain(twin, [x], lambda scores: zoo.of_words(scores, target))
        compiled = over_time(model, K, middle, 3, loss_fn=zoo.of_words, example_inputs=x)
        stepped = with_gradients(lambda: compiled.step(x, target), list(compiled.parameters()))  # noqa: B023
        found[f"{middle}, a step"] = difference(stepped, expected)
        called = plain(compiled, [x], lambda scores: zoo.of_words(scores, target))
        found[f"{middle}, a call"] = difference(called, expected)
        with torch.no_grad():
            found[f"{middle}, evaluation"] = difference([compiled(x)], [twin(x)])
        peaks = compiled.measured.peak_activations
        assert len(peaks) == torch.distributed.get_world_size()
    return found


@pytest.mark.parametrize(("ranks", "K"), chosen([(2, 2), (3, 3), (2, 4)], [(2, 2)]))
def test_ranks(ranks: int, K: int) -> None:
    for told in run_ranks(on_a_rank, ranks, K):
        assert set(told) == {f"{middle}, {what}" for middle in MIDDLES for what in ("a step", "a call", "evaluation")}
        assert max(told.values()) < EXACT, told


def one_that_fails(rank: int) -> Any:
    """A job raises on the last rank: all hear of it, and the next step is as if nothing had been."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    (x, target), model = zoo.words(4, 9), zoo.Words()
    compiled = over_time(model, 2, loss_fn=zoo.of_words, microbatches=2, example_inputs=x)
    before = float(compiled.step(x, target).detach())
    bad = x.clone()
    bad[:, -1] = zoo.CLASSES + 5  # a number that is not there, in the last chunk
    failed = "nothing"
    try:
        compiled.step(bad, target)
    except WorkerError as error:
        failed = str(error)
    return failed, before, float(compiled.step(x, target).detach())


def test_a_job_that_fails_is_told_to_all() -> None:
    for failed, before, after in run_ranks(one_that_fails, 2):
        assert "worker 1" in failed
        assert "IndexError" in failed
        assert after == before
