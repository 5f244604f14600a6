"""Train a small convolutional network, prune it, and retrain it twice: with plain PyTorch, and with `bppsa.compile`.

    python examples/retrain_pruned.py
    python examples/retrain_pruned.py --model vgg --prune 0.98 --scheme global
    python examples/retrain_pruned.py --cifar ~/data/cifar-10-batches-py

The images are scikit-learn's digits unless `--cifar` names the folder of CIFAR-10's python version. Both runs begin at
the same pruned weights and see the same batches, so their accuracies agree and only the clock differs. Prints a table,
and saves accuracy against the wall clock as a picture. Needs matplotlib, and scikit-learn for the digits.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa

matplotlib.use("Agg")
from matplotlib import pyplot

CLASSES = 10
VGG = (64, 64, "M", 128, 128, "M", 256, 256, "M")
LENET = (32, "M", 64, "M")


@dataclass(frozen=True)
class Images:
    """x: [N, C, H, W], about zero; y: int64 [N]"""

    x: Tensor
    y: Tensor

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.x), generator=generator)
        for rows in order.split(size):
            yield self.x[rows], self.y[rows]


@dataclass
class Run:
    name: str
    seconds: list[float] = field(default_factory=list)  # of each epoch
    accuracy: list[float] = field(default_factory=list)  # on held-out images, after each


def main() -> None:
    options = parse_options()
    console = Console()
    torch.manual_seed(options.seed)
    training, held_out = cifar(options.cifar) if options.cifar else digits()
    start = network(options.model, training.x.shape[1], training.x.shape[-1])
    train(start, training, held_out, options.epochs, options, Run("before pruning"))
    console.print(f"{accuracy(start, held_out):.2%} of held-out images right before pruning")

    plain, fast = (pruned(copy.deepcopy(start), options.prune, options.scheme) for _ in range(2))
    fast = bppsa.compile(fast)
    runs = [Run("PyTorch"), Run("bppsa")]
    for run, model in zip(runs, (plain, fast), strict=True):
        train(model, training, held_out, options.retrain, options, run)
    console.print(str(fast.report))
    console.print(table(runs, options))
    plot(runs, options)
    console.print(f"saved {options.output}")


def network(kind: str, channels: int, size: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for stage in VGG if kind == "vgg" else LENET:
        if stage == "M":
            layers.append(nn.MaxPool2d(2))
            size //= 2
        else:
            out = int(stage)
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
    hidden = 256
    layers += [nn.Flatten(), nn.Linear(channels * size * size, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)]
    return nn.Sequential(*layers)


def pruned(model: nn.Module, amount: float, scheme: str) -> nn.Module:
    """Masks by magnitude, by layer or over all at once (class-blind, See et al. 2016); the last layer stays whole."""
    *layers, _ = (m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    if scheme == "layer":
        for layer in layers:
            prune.l1_unstructured(layer, "weight", amount)
    else:
        prune.global_unstructured([(layer, "weight") for layer in layers], prune.L1Unstructured, amount=amount)
    return model


def train(
    model: nn.Module, training: Images, held_out: Images, epochs: int, options: argparse.Namespace, run: Run
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=0.9)
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(epochs):
        begin = time.perf_counter()
        model.train()
        for x, y in training.batches(options.batch, generator):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        run.seconds.append(time.perf_counter() - begin)
        run.accuracy.append(accuracy(model, held_out))


def accuracy(model: nn.Module, images: Images) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images.x).argmax(1) == images.y).float().mean())


def digits() -> tuple[Images, Images]:
    """1,797 handwritten digits of 8 x 8, enlarged to 16 x 16; a fifth is held out."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = F.interpolate(torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1, scale_factor=2.0)
    return split(x, torch.tensor(data.target, dtype=torch.int64), len(x) // 5)


def cifar(folder: Path) -> tuple[Images, Images]:
    """CIFAR-10 as its python version keeps it: five batches to train on, one held out."""

    def read(name: str) -> Images:
        with open(folder / name, "rb") as file:
            data = pickle.load(file, encoding="bytes")
        x = torch.tensor(data[b"data"], dtype=torch.float32).view(-1, 3, 32, 32) / 127.5 - 1
        return Images(x, torch.tensor(data[b"labels"]))

    parts = [read(f"data_batch_{i}") for i in range(1, 6)]
    return Images(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])), read("test_batch")


def split(x: Tensor, y: Tensor, held_out: int) -> tuple[Images, Images]:
    order = torch.randperm(len(x))
    a, b = order[held_out:], order[:held_out]
    return Images(x[a], y[a]), Images(x[b], y[b])


def table(runs: list[Run], options: argparse.Namespace) -> Table:
    found = Table("", *(run.name for run in runs), title=f"{options.prune:.0%} pruned ({options.scheme})")
    for epoch in sorted({0, options.retrain // 2, options.retrain - 1}):
        found.add_row(f"held out, epoch {epoch + 1}", *(f"{run.accuracy[epoch]:.2%}" for run in runs))
    found.add_row("an epoch, s", *(f"{typical(run):.3g}" for run in runs))
    found.add_row("times as fast", "1", f"{typical(runs[0]) / typical(runs[1]):.3g}")
    return found


def typical(run: Run) -> float:
    """The median without the first epoch, which builds or loads kernels."""
    return statistics.median(run.seconds[1:] or run.seconds)


def plot(runs: list[Run], options: argparse.Namespace) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        clock = torch.tensor(run.seconds).cumsum(0)
        axes.plot(clock, run.accuracy, marker=".", label=run.name)
    axes.set(xlabel="seconds", ylabel="held-out accuracy", title=f"retraining, {options.prune:.0%} pruned")
    axes.legend()
    figure.tight_layout()
    figure.savefig(options.output)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Retrain a pruned network with plain PyTorch and with bppsa.")
    parser.add_argument("--model", choices=["lenet", "vgg"], default="vgg")
    parser.add_argument("--prune", type=float, default=0.97, help="the part of the weights that is removed")
    parser.add_argument("--scheme", choices=["layer", "global"], default="layer")
    parser.add_argument("--epochs", type=int, default=3, help="before pruning")
    parser.add_argument("--retrain", type=int, default=8, help="epochs after it")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cifar", type=Path, help="the folder cifar-10-batches-py")
    parser.add_argument("--output", type=Path, default=Path("pruned.png"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
