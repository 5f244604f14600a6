"""Stages that are made equal by measured times, and for workers of unequal speed: the same gradients, other cuts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from bppsa import compile
from bppsa.errors import ArgumentError, StrategyError
from bppsa.schedule import ddp, gpipe, interleaved, one_f_one_b, zero_bubble
from tests.workers import on_ranks, support
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())))


def test_a_measured_cut_computes_what_pytorch_does() -> None:
    x, plain = torch.linspace(0, 1, 128).view(8, 16), net()
    loss = nn.MSELoss()(plain(x), x)
    loss.backward()
    for balance in ("cost", "measured"):
        compiled: Any = compile(
            copy.deepcopy(net()),
            schedule=zero_bubble(),
            stages=3,
            microbatches=4,
            loss_fn=nn.MSELoss(),
            balance=balance,
            example_inputs=x,
        )
        support.close(compiled.step(x, x), loss.detach())
        support.same(support.gradients(compiled), support.gradients(plain))
        assert compiled.timeline.units.time == ("s" if balance == "measured" else "flops")
    timeline = compiled.timeline
    seconds = [stage.seconds for stage in compiled.stages.stages]
    assert timeline.end[1, 0, "F"] - timeline.start[1, 0, "F"] == pytest.approx(seconds[1].forward / 4)
    assert timeline.end[1, 0, "B"] - timeline.start[1, 0, "B"] == pytest.approx(seconds[1].backward / 8)


def test_slow_workers_are_given_less() -> None:
    x = torch.randn(8, 16)

    def ops(schedule: Any, **options: Any) -> list[int]:
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(16)))
        compiled: Any = compile(model, schedule=schedule, stages=4, microbatches=4, example_inputs=x, **options)
        return [stage.ops for stage in compiled.stages.stages]

    assert ops(gpipe()) == [4, 4, 4, 4]
    assert ops(gpipe(), speeds=[1, 1, 0.25, 1]) == [5, 5, 1, 5]
    assert ops(interleaved(2), workers=2, speeds=[1, 3]) == [2, 6, 2, 6]
    assert ops(ddp(), speeds=[1, 1, 1, 3]) == [4, 4, 4, 4]  # each runs all stages


def test_the_timeline_is_of_workers_at_their_speeds() -> None:
    compiled: Any = compile(
        net(), schedule=one_f_one_b(), stages=2, speeds=[1, 0.5], microbatches=2, example_inputs=torch.randn(4, 16)
    )
    timeline, stages = compiled.timeline, compiled.stages.stages
    for s, speed in enumerate((1, 0.5)):
        assert timeline.end[s, 0, "F"] - timeline.start[s, 0, "F"] == pytest.approx(stages[s].cost / speed)


def test_what_balance_and_speeds_may_be() -> None:
    model, x = net(), torch.randn(4, 16)
    with pytest.raises(StrategyError, match="unknown balance='time'; known: cost, measured"):
        compile(model, schedule=gpipe(), balance="time")
    with pytest.raises(ArgumentError, match="speeds= takes a list with a number above 0 for each worker"):
        compile(model, schedule=gpipe(), speeds=[1, 0])
    with pytest.raises(StrategyError, match="speeds= has 3 numbers, and the schedule 4 workers"):
        compile(model, schedule=gpipe(), stages=4, speeds=[1, 1, 1], example_inputs=x)
    with pytest.raises(StrategyError, match="balance= says nothing where stages are given"):
        compile(model, schedule=gpipe(), stages=list(model), balance="measured")


@pytest.mark.slow
def test_ranks_agree_on_what_they_measure() -> None:
    told = run_ranks(on_ranks.all_of, 2, [(on_ranks.measured, "one_f_one_b")])
    assert told[0] == told[1]
    assert told[0][0][2] == "s"
