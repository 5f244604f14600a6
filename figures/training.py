"""One training iteration and its phases' seconds, and two models that learn side by side from the same batches.

The two take turns at every iteration, so that what else the machine does slows both alike.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from dataclasses import dataclass, field

import torch
from rich.progress import track
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from figures.figure import Record
from figures.ways import BASELINE, WAYS
from figures.workload import Batch, Classifier, Workload
from harness.comparison import strategy
from harness.timing import significant
from rows.problems import difference

Phases = tuple[float, float, float]  # seconds
PHASES = "forward", "backward", "rest"  # with the loss; all gradients; the optimizer
BACKWARD = PHASES.index("backward")
WARM_UP = 3
POINTS = 200  # of a curve in a record


def iterate(model: nn.Module, optimizer: Optimizer, batch: Batch) -> tuple[float, Phases]:
    """One iteration: its loss, a mean cross entropy in nats, and the wall clock's seconds."""
    x, classes = batch
    start = now(x.device)
    loss = F.cross_entropy(model(x), classes)
    forward = now(x.device)
    loss.backward()
    backward = now(x.device)
    optimizer.step()
    optimizer.zero_grad()
    end = now(x.device)
    return loss.item(), (forward - start, backward - forward, end - backward)


def now(device: torch.device) -> float:
    """The wall clock once the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def ran(way: str, model: nn.Module) -> str:
    """The strategy of the model's last call."""
    return "pytorch" if way == BASELINE else strategy(model)


def check(model: Classifier, fast: nn.Module, batch: Batch) -> float:
    """The largest relative difference of scores and gradients; stops where `fast`, of the same Parameters, is wrong."""
    torch.manual_seed(0)
    x = batch[0]
    cotangent = torch.randn(x.shape[1], model.head.out_features, device=x.device)
    return difference(lambda: model(x), lambda: fast(x), list(model.parameters()), cotangent)


@dataclass
class Run:
    """The training of a copy of a model by one way."""

    way: str
    model: nn.Module
    optimizer: Optimizer
    losses: list[float] = field(default_factory=list)
    phases: list[Phases] = field(default_factory=list)

    @staticmethod
    def of(model: nn.Module, way: str, lr: float) -> Run:
        ours = WAYS[way](copy.deepcopy(model))
        return Run(way, ours, Adam(ours.parameters(), lr=lr))

    def step(self, batch: Batch) -> None:
        loss, phases = iterate(self.model, self.optimizer, batch)
        self.losses.append(loss)
        self.phases.append(phases)

    @property
    def seconds(self) -> list[float]:
        """Since training began, after every iteration."""
        return list(itertools.accumulate(map(sum, self.phases)))

    @property
    def backward_seconds(self) -> float:
        return sum(phases[BACKWARD] for phases in self.phases)

    def record(self) -> Record:
        """The curve, thinned: seconds at the end of each window of iterations, and its mean loss."""
        window = max(1, len(self.losses) // POINTS)
        medians = (statistics.median(phase) for phase in zip(*self.phases, strict=True))
        return {
            "ran": ran(self.way, self.model),
            "seconds": [significant(s) for s in self.seconds[window - 1 :: window]],
            "loss": [
                significant(statistics.fmean(self.losses[end - window : end]), 5)
                for end in range(window, len(self.losses) + 1, window)
            ],
            **{f"{name}_ms": significant(1e3 * s) for name, s in zip(PHASES, medians, strict=True)},
        }


def side_by_side(workload: Workload, ways: tuple[str, str], lr: float, iterations: int, seconds: float) -> Record:
    """Trains by both ways for at most so many iterations, and fewer where they would take longer than `seconds`."""
    first = next(workload.batches())
    gradients = check(workload.model, WAYS[ways[1]](workload.model), first)
    first_step_s, round_s = warm_up(workload, ways, first)
    done = max(WARM_UP, int(min(iterations, seconds / round_s)))
    runs = {way: Run.of(workload.model, way, lr) for way in ways}
    for batch in track(itertools.islice(workload.batches(), done), " and ".join(ways), total=done):
        for run in runs.values():
            run.step(batch)
    baseline, ours = (runs[way] for way in ways)
    return {
        "T": len(first[0]),
        "B": workload.rows,
        "inputs": first[0].shape[-1],
        "iterations": done,
        "iterations_an_epoch": workload.iterations_an_epoch,
        "lr": lr,
        "relative_difference_of_gradients": gradients,
        "greatest_difference_of_losses": significant(
            max(abs(a - b) for a, b in zip(baseline.losses, ours.losses, strict=True)), 2
        ),
        "overall": significant(baseline.seconds[-1] / ours.seconds[-1]),
        "backward": significant(baseline.backward_seconds / ours.backward_seconds),
        "ways": {way: run.record() | {"first_step_s": first_step_s[way]} for way, run in runs.items()},
    }


def warm_up(workload: Workload, ways: tuple[str, str], batch: Batch) -> tuple[dict[str, float], float]:
    """The seconds of each way's first step in the process, where kernels are built or loaded, and of a later round."""
    runs = {way: Run.of(workload.model, way, 0.0) for way in ways}
    for _ in range(WARM_UP):
        for run in runs.values():
            run.step(batch)
    first = {way: significant(sum(run.phases[0])) for way, run in runs.items()}
    return first, sum(min(map(sum, run.phases[1:])) for run in runs.values())
