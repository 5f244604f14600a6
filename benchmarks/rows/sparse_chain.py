"""Feed-forward nets: what `auto` costs beside PyTorch, and how long the backward takes by every strategy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

import bppsa
from bppsa.decisions import Decision
from harness.comparison import Options, Row
from harness.timing import Step, interleave, milliseconds, ratio

GOAL = 0.97  # of PyTorch's speed, at least, under auto
STRATEGIES = ("hybrid(up_levels=0)", "chunked", "hybrid(up_levels=1)", "hybrid(up_levels=2)", "blelloch")


def mlp(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())))


def lenet() -> nn.Module:
    """LeNet-5 for 32 x 32 images of three channels, as BPPSA section 3.5 trains it on CIFAR-10."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def vgg11(width: int) -> nn.Module:
    """VGG-11 for 32 x 32 images; width 64 is its own."""
    layers: list[nn.Module] = []
    before = 3
    for times in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
        layers += [nn.Conv2d(before, times * width, 3, padding=1), nn.ReLU()] if times else [nn.MaxPool2d(2)]
        before = times * width or before
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


IMAGE = (3, 32, 32)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 16x32": (lambda: mlp(16, 32), (32,)),
    "MLP 64x16": (lambda: mlp(64, 16), (16,)),
    "LeNet-5": (lenet, IMAGE),
    "VGG-11": (lambda: vgg11(64), IMAGE),
    "VGG-11 / 16": (lambda: vgg11(4), IMAGE),
}


@dataclass(frozen=True)
class Case:
    net: str
    B: int

    def model(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        make, shape = NETS[self.net]
        return make(), torch.randn(self.B, *shape)


def overhead_cases(options: Options) -> list[Case]:
    if options.quick:
        return [Case("MLP 16x32", 2)]
    return [Case(net, rows) for net in ("MLP 16x32", "LeNet-5", "VGG-11") for rows in (1, 16)]


def overhead(case: Case, options: Options) -> list[Row]:
    """A training step without an optimizer's part: forward, backward."""
    model, x = case.model()
    samples = interleave({"peer": step(model, x), "ours": step(bppsa.compile(model), x)}, options.repeats)
    times = {"peer_ms": milliseconds(samples["peer"]), "ours_ms": milliseconds(samples["ours"])}
    return [asdict(case) | times | {"ratio": asdict(ratio(samples["peer"], samples["ours"])), "goal": GOAL}]


def strategy_cases(options: Options) -> list[Case]:
    if options.quick:
        return [Case("MLP 16x32", 2)]
    return [Case("MLP 16x32", 16), Case("MLP 64x16", 16), Case("LeNet-5", 1), Case("VGG-11 / 16", 1)]


def strategies(case: Case, options: Options) -> list[Row]:
    """The backward alone, by PyTorch and by each strategy."""
    model, x = case.model()
    fast = {name: bppsa.compile(model, strategy=name) for name in STRATEGIES}
    sides = {"peer": backward(model, x), **{name: backward(part, x) for name, part in fast.items()}}
    samples = interleave(sides, options.repeats)
    peer = {"peer_ms": milliseconds(samples["peer"])}
    return [
        asdict(case)
        | {"strategy": name, **peer, "ours_ms": milliseconds(samples[name])}
        | {"ratio": asdict(ratio(samples["peer"], samples[name])), **formed(part.report.decisions[0])}
        for name, part in fast.items()
    ]


def formed(decision: Decision) -> Row:
    """What the scan forms, as `explain` tells it."""
    return {name: decision.numbers.get(name, 0) for name in ("stages", "levels", "MFLOP", "MiB")}


def step(model: nn.Module, x: Tensor) -> Step:
    def run() -> tuple[float]:
        start = time.perf_counter()
        model(x).sum().backward()
        return (time.perf_counter() - start,)

    return run


def backward(model: nn.Module, x: Tensor) -> Step:
    def run() -> tuple[float]:
        loss = model(x).sum()
        start = time.perf_counter()
        loss.backward()
        return (time.perf_counter() - start,)

    return run
