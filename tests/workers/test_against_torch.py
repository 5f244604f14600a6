"""The same micro-batches through the same layers by torch.distributed.pipelining: equal losses and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from bppsa import compile, schedule
from tests.workers import support
from tests.workers.ranks import run_ranks

RANKS, MICROBATCHES, WIDTH = 2, 4, 4
Result = list[tuple[Tensor | None, dict[str, Tensor | None]]]  # of steps, the loss and the gradients that a rank has

# Ours, torch's, and how many stages each rank has.
PAIRS: Mapping[str, tuple[Callable[[], Any], Any, int]] = {
    "gpipe": (schedule.gpipe, pipelining.ScheduleGPipe, 1),
    "one_f_one_b": (schedule.one_f_one_b, pipelining.Schedule1F1B, 1),
    "interleaved": (schedule.interleaved, pipelining.ScheduleInterleaved1F1B, 2),
    "breadth_first": (lambda: schedule.breadth_first(1, RANKS), pipelining.ScheduleLoopedBFS, 2),
}


def layers(stages: int) -> nn.ModuleList:
    """Of each stage, a module."""
    with torch.random.fork_rng(), support.float64():
        torch.manual_seed(0)
        parts = ((nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(stages))
        return nn.ModuleList(nn.Sequential(*part) for part in parts)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 2, 2 * MICROBATCHES, WIDTH, dtype=torch.float64, generator=generator)
    return [(x, target) for x, target in drawn]


def by_torch(rank: int, name: str) -> Result:
    """Of one step at a time, as torch scales what earlier ones have left in `.grad` once more."""
    _, make, each = PAIRS[name]
    own = {s: layer for s, layer in enumerate(layers(RANKS * each)) if s % RANKS == rank}
    stages = [pipelining.PipelineStage(layer, s, RANKS * each, torch.device("cpu")) for s, layer in own.items()]
    run = make(stages if each > 1 else stages[0], MICROBATCHES, loss_fn=nn.MSELoss())
    found: Result = []
    for x, target in batches():
        given: list[Tensor] = []
        last = RANKS * each - 1 in own
        run.step(*([x] if 0 in own else []), **({"target": target, "losses": given} if last else {}))
        loss = torch.stack(given).mean().detach() if last else None
        found.append((loss, {f"{s}.{p}": g for s, layer in own.items() for p, g in support.gradients(layer).items()}))
        for layer in own.values():
            layer.zero_grad()
    return found


def by_us(rank: int, name: str) -> Result:
    ours, _, each = PAIRS[name]
    model = layers(RANKS * each)
    compiled = compile(
        Chain(model),
        schedule=ours(),
        stages=list(model),
        microbatches=MICROBATCHES,
        loss_fn=nn.MSELoss(),
        example_inputs=batches()[0][0],
    )
    found: Result = []
    for x, target in batches():
        loss = compiled.step(x, target)
        found.append((loss, {p.removeprefix("layers."): g for p, g in support.gradients(compiled).items()}))
        compiled.zero_grad()
    return found


class Chain(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def both(rank: int) -> dict[str, tuple[Result, Result]]:
    return {name: (by_us(rank, name), by_torch(rank, name)) for name in PAIRS}


@pytest.fixture(scope="module")
def found() -> list[dict[str, tuple[Result, Result]]]:
    """By rank."""
    return run_ranks(both, RANKS, timeout=120)


@pytest.mark.parametrize("name", PAIRS)
def test_losses_and_gradients_are_torchs(found: list[dict[str, tuple[Result, Result]]], name: str) -> None:
    losses = [loss for loss, _ in found[-1][name][1]]  # torch tells them where the last stage is
    for ours, torchs in (of_rank[name] for of_rank in found):
        assert all(grads for _, grads in torchs)
        support.close([loss for loss, _ in ours], losses)
        for (_, grads), (_, expected) in zip(ours, torchs, strict=True):
            support.same(grads, expected)
