"""What a figure is: how it is measured, and how it is drawn from what was measured.

The two meet in a record, which is also the JSON file beside the picture, so a picture can be drawn again from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure as Picture

# Of every figure: "title", "size", "on" (machine, versions), "data" (what is trained on) and "beside" (rows of what,
# paper, ours); of some, "text" (name -> diagram or table in text, for the page). The rest is its own.
Record = dict[str, Any]

QUICK, SCALED, FULL = "quick", "scaled", "full"


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    size: str  # sizes of nothing, what this machine does in `seconds`, or the paper's
    seconds: float  # that a figure's samples may take, about; what there has to be at least may take longer
    device: torch.device
    ways: tuple[str, ...]  # names in ways.WAYS: the baseline, what is trained beside it, what else is timed
    irmas: Path | None = None  # the folder IRMAS-TrainingData
    cifar10: Path | None = None  # the folder cifar-10-batches-bin

    @property
    def pair(self) -> tuple[str, str]:
        """What is trained side by side."""
        return self.ways[0], self.ways[1]

    @property
    def budget(self) -> float:
        """Seconds; other sizes take as long as they take."""
        return self.seconds if self.size == SCALED else math.inf


@dataclass(frozen=True)
class Figure:
    title: str
    measure: Callable[[Options], Record]
    draw: Callable[[Record], Picture]
    simulated: bool = False  # or counted, and so the same on every machine
