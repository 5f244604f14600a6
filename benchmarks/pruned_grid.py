"""How often a pruned model is slower than masked PyTorch: small models over densities, shapes and batches.

    python benchmarks/pruned_grid.py            some minutes; nothing else should run

Each is measured beside PyTorch, both in their better memory format, interleaved; what `bppsa.compile` leaves to
PyTorch counts too. Slower means by more than 3 % and by more than the quartiles are apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.utils import prune

import bppsa
from harness import machine
from harness.timing import Spread, interleave, milliseconds, ratio
from pruned import FORMATS
from rows.pruned_steps import inference, training_step

SLOWER = 0.97
DENSITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
BATCHES = (1, 4, 16, 64)


def convs(channels: int) -> nn.Sequential:
    one, two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
    return nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def strided(channels: int) -> nn.Sequential:
    one, two = nn.Conv2d(channels, channels, 3, 2, 1), nn.Conv2d(channels, channels, 1, 2)
    return nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def grouped(channels: int) -> nn.Sequential:
    one, two = (nn.Conv2d(channels, channels, 3, padding=1, groups=4) for _ in range(2))
    return nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def pointwise(channels: int) -> nn.Sequential:
    one, two = (nn.Conv2d(channels, channels, 1, bias=False) for _ in range(2))
    norms = (nn.BatchNorm2d(channels), nn.BatchNorm2d(channels))
    return nn.Sequential(one, norms[0], nn.ReLU(), two, norms[1], nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


# of a model: what makes it, its width, the size of its images (0: none)
MODELS: dict[str, tuple[Callable[[int], nn.Sequential], int, int]] = {
    "3x3, 16 channels, 32x32": (convs, 16, 32),
    "3x3, 128 channels, 8x8": (convs, 128, 8),
    "3x3, 512 channels, 2x2": (convs, 512, 2),
    "stride 2, 128 channels, 16x16": (strided, 128, 16),
    "4 groups, 128 channels, 8x8": (grouped, 128, 8),
    "1x1, 256 channels, 8x8": (pointwise, 256, 8),
    "linear 128": (perceptron, 128, 0),
    "linear 1024": (perceptron, 1024, 0),
}


@dataclass(frozen=True)
class Found:
    model: str
    density: float
    B: int
    training: bool
    chosen: str
    peer_ms: float
    ratio: Spread

    @property
    def slower(self) -> bool:
        return self.ratio.median < SLOWER and self.ratio.high < 1


def made(name: str, density: float) -> nn.Module:
    torch.manual_seed(0)
    make, width, _ = MODELS[name]
    model = make(width)
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            prune.random_unstructured(layer, "weight", 1 - density)
    return model


def measure(name: str, density: float, B: int, training: bool, repeats: int) -> Found:
    (_, width, size), pruned = MODELS[name], partial(made, name, density)
    plain = {form: pruned().to(memory_format=f) for form, f in FORMATS.items()}
    fast = {f"bppsa {form}": bppsa.compile(pruned().to(memory_format=f)) for form, f in FORMATS.items()}
    x = torch.randn(B, width, size, size) if size else torch.randn(B, width)
    batches = {form: x.to(memory_format=f) if size else x for form, f in FORMATS.items()}
    step = training_step if training else inference
    steps = {form: step(m, batches[form]) for form, m in plain.items()}
    steps |= {form: step(m, batches[form.split()[1]]) for form, m in fast.items()}
    samples = interleave(steps, repeats)
    better, ours = (min(models, key=lambda form: milliseconds(samples[form])) for models in (plain, fast))
    chosen = "/".join(sorted({decision.strategy for decision in fast[ours].report.decisions}))
    times = milliseconds(samples[better]), ratio(samples[better], samples[ours])
    return Found(name, density, B, training, chosen, *times)


def table(rows: list[Found]) -> Table:
    found = Table("model", "kept", "B", "", "chosen", "PyTorch ms", "ratio", "quartiles")
    for row in rows:
        spread = row.ratio
        numbers = f"{row.peer_ms:.3g}", f"{spread.median:.2f}", f"{spread.low:.2f}-{spread.high:.2f}"
        found.add_row(
            *(row.model, f"{row.density:.0%}", str(row.B), "step" if row.training else "inference"),
            *(row.chosen, *numbers),
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How often bppsa is slower than masked PyTorch on pruned models.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--models", type=partial(str.split, sep=";"), default=list(MODELS), help="names, with semicolons"
    )
    options = parser.parse_args()
    torch.set_num_threads(2)
    machine.require_onednn()
    cases = list(product(options.models, DENSITIES, BATCHES, (True, False)))
    rows = [measure(*case, options.repeats) for case in cases]
    slower = [row for row in rows if row.slower]
    console = Console(width=150)
    console.print(table(rows))
    console.print(f"{len(slower)} of {len(rows)} slower than PyTorch by more than 3 %")
    for row in sorted(slower, key=lambda row: row.ratio.median):
        console.print(f"  {row.ratio.median:.2f}  {row}")


if __name__ == "__main__":
    main()
