"""The GRU of section 4.2 and what it learns from: IRMAS where it is at hand, else a stand-in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from figures.audio import INSTRUMENTS, SETS, Features, load
from figures.figure import FULL, QUICK, SCALED, Options
from figures.notes import notes
from figures.paper import IRMAS_SAMPLES
from figures.workload import HIDDEN, Classifier, Samples, Workload

LEARNING_RATE = 3e-4
EPOCHS = 400


@dataclass(frozen=True)
class Sizes:
    sets: tuple[str, ...]
    rows: tuple[int, ...]  # B
    samples: int  # to train on
    iterations_an_epoch: int  # at B = 16
    epochs: int
    lr: float


SIZES = {
    QUICK: Sizes(("S",), (16,), 32, 2, 2, 3e-4),
    SCALED: Sizes(tuple(SETS), (16, 32, 64), 512, IRMAS_SAMPLES // 16, EPOCHS, 1e-3),
    FULL: Sizes(tuple(SETS), (16, 32, 64), IRMAS_SAMPLES, IRMAS_SAMPLES // 16, EPOCHS, LEARNING_RATE),
}


def samples_of(features: Features, most: int, options: Options) -> Samples:
    return load(options.irmas, features, most) if options.irmas else notes(features, most)


def data_name(options: Options) -> str:
    return "IRMAS" if options.irmas else "synthetic notes, a stand-in for IRMAS"


def workload(samples: Samples, rows: int, options: Options) -> Workload:
    torch.manual_seed(0)
    model = Classifier(nn.GRU(samples.x.shape[-1], HIDDEN), len(INSTRUMENTS)).to(options.device)
    return Workload(model, samples, rows, options.device)
