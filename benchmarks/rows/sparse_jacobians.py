"""Values of transposed Jacobians beside PyTorch's autograd, one column at a time; whole Jacobians beside jacrev."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

import bppsa
from harness.comparison import Options, Row
from harness.timing import Step, interleave, milliseconds, ratio, significant

COLUMNS = 64  # of J^T that autograd is timed on; their number times the time of one is the time of all
CHUNK = 256  # rows of J that jacrev takes at once, which its memory allows


@dataclass(frozen=True)
class Values:
    """An operator of VGG-11 on images of 32 x 32 (BPPSA, table 1)."""

    name: str
    layer: nn.Module
    channels: int
    samples: int
    goal: float | None = None  # how many times as long one column at a time takes
    limit: float | None = None  # of the time that writing as many numbers takes

    def __str__(self) -> str:
        return f"{self.name}, B={self.samples}"


def value_cases(options: Options) -> list[Values]:
    convolution = Values("conv 3->64", nn.Conv2d(3, 64, 3, padding=1), 3, 1, goal=2e4)
    pointwise = [
        Values(name, layer, 64, samples, limit=2)
        for name, layer in (("ReLU", nn.ReLU()), ("max-pool 2x2", nn.MaxPool2d(2)))
        for samples in (1, 16)
    ]
    return [convolution, *pointwise]


def values(case: Values, options: Options) -> list[Row]:
    """peer: all columns by autograd, from those timed. written: a copy of as many numbers."""
    torch.manual_seed(0)
    size = 8 if options.quick else 32
    x = torch.randn(case.samples, case.channels, size, size)
    jt = bppsa.transposed_jacobian(case.layer, x)
    found = jt.entries().clone()
    steps = {"peer": step(columns(case.layer, x, jt.shape[1])), "ours": step(jt.entries), "written": step(found.clone)}
    samples = interleave(steps, options.repeats)
    all_of_them = [(jt.shape[1] / COLUMNS * seconds,) for (seconds,) in samples["peer"]]
    row: Row = {
        "operator": str(case),
        "shape": list(jt.shape),
        "nnz": jt.nnz,
        "ours_us": significant(1e3 * milliseconds(samples["ours"])),
        "written_us": significant(1e3 * milliseconds(samples["written"])),
        "over_written": ratio(samples["ours"], samples["written"]).median,
        "peer_ms": milliseconds(all_of_them),
        "ratio": asdict(ratio(all_of_them, samples["ours"])),
    }
    return [row | {name: goal for name, goal in (("goal", case.goal), ("limit", case.limit)) if goal is not None}]


def columns(layer: nn.Module, x: Tensor, m: int) -> Callable[[], None]:
    """COLUMNS columns of J^T of one sample, evenly spread, one vector product each."""
    x = x[:1].clone().requires_grad_()
    y = layer(x)
    units = []
    for at in torch.linspace(0, m - 1, COLUMNS).long().tolist():
        unit = torch.zeros_like(y)
        unit.view(-1)[at] = 1
        units.append(unit)

    def run() -> None:
        for unit in units:
            torch.autograd.grad(y, x, unit, retain_graph=True)

    return run


@dataclass(frozen=True)
class Local:
    """Three convolutions 3 x 3 with tanh between them: an output depends on 7 x 7 places."""

    channels: int
    hidden: int
    size: int
    goal: float

    def __str__(self) -> str:
        return f"{self.channels}-{self.hidden}-{self.hidden}-{self.channels} @ {self.size}"

    def model(self) -> nn.Module:
        a, b = self.channels, self.hidden
        first, middle, last = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((a, b), (b, b), (b, a)))
        return nn.Sequential(first, nn.Tanh(), middle, nn.Tanh(), last)


def jacobian_cases(options: Options) -> list[Local]:
    return [Local(1, 2, 8, 1)] if options.quick else [Local(1, 8, 48, 60), Local(1, 8, 64, 100)]


def jacobians(case: Local, options: Options) -> list[Row]:
    torch.manual_seed(0)
    model, x = case.model(), torch.randn(1, case.channels, case.size, case.size)
    start = time.perf_counter()
    plan = bppsa.jacobian_plan(model, x)
    plan_ms = 1e3 * (time.perf_counter() - start)
    peer = torch.func.jacrev(model, chunk_size=CHUNK)
    found, expected = bppsa.jacobian(model, x), peer(x).view(x.numel(), x.numel())
    steps = {
        "peer": step(lambda: peer(x)),
        "ours": step(lambda: bppsa.jacobian(model, x)),
        "plan": step(lambda: plan(x)),
    }
    samples = interleave(steps, min(options.repeats, 3))
    row: Row = {
        "network": str(case),
        "N": x.numel(),
        "nnz": found.values().numel(),
        "colours": plan.report.decisions[0].numbers["colours"],
        "plan_ms": significant(plan_ms),
        "peer_ms": milliseconds(samples["peer"]),
        "ours_ms": milliseconds(samples["ours"]),
        "call_ms": milliseconds(samples["plan"]),
        "ratio": asdict(ratio(samples["peer"], samples["ours"])),
        "goal": case.goal,
        "difference": significant(float((found.to_dense() - expected).norm() / expected.norm()), 2),
    }
    return [row]


def step(run: Callable[[], object]) -> Step:
    def timed() -> tuple[float, ...]:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start,)

    return timed
