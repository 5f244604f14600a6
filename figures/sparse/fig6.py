"""Figure 6: LeNet-5 learns the same through a scan as by back-propagation (section 3.5)."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from matplotlib.figure import Figure as Picture
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from figures import drawing
from figures.figure import FULL, QUICK, SCALED, Figure, Options, Record
from figures.paper import LENET, beside
from figures.sparse.images import Batch, Images, images
from figures.sparse.networks import CLASSES, lenet5
from figures.training import BACKWARD, Phases, iterate, ran
from figures.ways import BASELINE, WAYS
from harness.timing import significant
from rows.problems import difference

SCAN = "blelloch"


@dataclass(frozen=True)
class Sizes:
    rows: int
    iterations: int
    lr: float
    test_every: int = 1  # iterations


PAPER = Sizes(LENET.rows, LENET.iterations, LENET.lr, test_every=100)
# In the hundred times fewer iterations of a minute nothing would be learnt at 0.001. At 0.02 the losses,
# equal to rounding at first, were 0.07 apart somewhere within 60 iterations.
SIZES = {QUICK: Sizes(16, 4, 0.01), SCALED: replace(PAPER, iterations=60, lr=0.01, test_every=1), FULL: PAPER}


@dataclass
class Run:
    """The training of a copy of a model by one way."""

    way: str
    model: nn.Module
    optimizer: SGD
    training: list[float] = field(default_factory=list)  # losses
    test: list[float] = field(default_factory=list)
    phases: list[Phases] = field(default_factory=list)
    ran: str = ""  # the strategy of the last step

    @staticmethod
    def of(model: nn.Module, way: str, lr: float) -> Run:
        ours = WAYS[way](copy.deepcopy(model))
        return Run(way, ours, SGD(ours.parameters(), lr=lr, momentum=LENET.momentum))

    def step(self, batch: Batch) -> None:
        loss, phases = iterate(self.model, self.optimizer, batch)
        self.training.append(loss)
        self.phases.append(phases)
        self.ran = ran(self.way, self.model)

    @torch.no_grad()
    def measure(self, test: Batch) -> None:
        x, classes = test
        self.test.append(F.cross_entropy(self.model(x), classes).item())

    def record(self) -> Record:
        backward = statistics.median(phases[BACKWARD] for phases in self.phases)
        losses = {"training": self.training, "test": self.test}
        return {"ran": self.ran, "backward_ms": significant(1e3 * backward)} | {
            what: [significant(loss, 6) for loss in found] for what, found in losses.items()
        }


def measure(options: Options) -> Record:
    sizes, data = SIZES[options.size], images(options.cifar10)
    torch.manual_seed(0)
    model = lenet5(data.channels).to(options.device)
    gradients = check(model, next(data.batches(sizes.rows, options.device))[0])
    runs = [Run.of(model, way, sizes.lr) for way in (BASELINE, SCAN)]
    train(runs, data, sizes, options)
    return {
        "data": data.name,
        "beside": besides(runs, sizes, gradients),
        "iterations": len(runs[0].training),
        "test_every": sizes.test_every,
        "B": sizes.rows,
        "lr": sizes.lr,
        "relative_difference_of_gradients": gradients,
        "greatest_difference": {"training": apart(runs, "training"), "test": apart(runs, "test")},
        "ways": {run.way: run.record() for run in runs},
    }


def check(model: nn.Sequential, x: Tensor) -> float:
    """The largest relative difference of scores and gradients by the scan; stops where it is wrong."""
    fast = WAYS[SCAN](model)
    cotangent = torch.randn(len(x), CLASSES, generator=torch.Generator().manual_seed(0)).to(x.device)
    return difference(lambda: model(x), lambda: fast(x), list(model.parameters()), cotangent)


def train(runs: list[Run], data: Images, sizes: Sizes, options: Options) -> None:
    """The ways take turns at every iteration, on the same batches, for as long as the budget lasts."""
    x, classes = data.test
    test = x.to(options.device), classes.to(options.device)
    batches = itertools.islice(data.batches(sizes.rows, options.device), sizes.iterations)
    for number, batch in enumerate(within(batches, options.budget), 1):
        for run in runs:
            run.step(batch)
            if number % sizes.test_every == 0:
                run.measure(test)


def within(batches: Iterator[Batch], seconds: float) -> Iterator[Batch]:
    start = time.perf_counter()
    return itertools.takewhile(lambda _: time.perf_counter() - start < seconds, batches)


def apart(runs: list[Run], what: str) -> float:
    baseline, ours = (getattr(run, what) for run in runs)
    return significant(max(abs(a - b) for a, b in zip(baseline, ours, strict=True)), 2)


def besides(runs: list[Run], sizes: Sizes, gradients: float) -> list[Record]:
    backward = [run.record()["backward_ms"] for run in runs]
    lines = [
        beside(f"{what} losses of an iteration", "overlap", f"differ by {apart(runs, what):.0e} at most")
        for what in ("training", "test")
    ]
    first, last = runs[0].training[0], runs[0].training[-1]
    return [
        beside("gradients of the first iteration", "equal", f"differ by {gradients:.0e}, relative"),
        *lines,
        beside("training loss, first and last", "2.3 to 1.4, about", f"{first:.3g} to {last:.3g}"),
        beside("iterations", f"{LENET.iterations}, about", f"{len(runs[0].training)}"),
        beside("learning rate, momentum", f"{LENET.lr:g}, {LENET.momentum:g}", f"{sizes.lr:g}, {LENET.momentum:g}"),
        beside("batch", f"{LENET.rows}", f"{sizes.rows}"),
        beside("backward by the scan", "", f"{backward[1] / backward[0]:.2g}x as long as PyTorch's"),
    ]


def draw(record: Record) -> Picture:
    picture, panels = drawing.panels(1, 2, sharey=True)
    for axes, what, every in zip(panels, ("training", "test"), (1, record["test_every"]), strict=True):
        for number, (way, run) in enumerate(record["ways"].items()):
            iterations = [every * (at + 1) for at in range(len(run[what]))]
            line = "--" if number else "-"
            axes.plot(iterations, run[what], line, color=drawing.COLOURS[way], label=drawing.label(way))
        greatest = record["greatest_difference"][what]
        axes.set(xlabel="iterations", title=f"{what} loss; greatest difference: {greatest:.0e}")
        axes.legend()
    panels[0].set(ylabel="loss, nats")
    return picture


FIGURE = Figure("Figure 6: LeNet-5 learns through a scan over its transposed Jacobians", measure, draw)
