"""Which schedules are measured, and on what: a network of equal stages, whose jobs take as long as a case says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bppsa.schedule import Recipe
from bppsa.schedule.names import named

RANKS = 2
DEPTH = 3  # layers of a stage


@dataclass(frozen=True)
class Size:
    """Of a stage and a micro-batch. Matrices are large where jobs are long, so that what jobs hand on stays small."""

    name: str
    width: int
    rows: int
    samples: int = 1  # how many times as many where steps are short


LARGE = Size("20 ms", 1024, 256)
SMALL = Size("1 ms", 256, 192, samples=8)
TINY = Size("nothing", 8, 2)


@dataclass(frozen=True)
class Case:
    """peer: the way of PyTorch that does the same, by its name in `schedules_peers.PEERS`."""

    schedule: str
    S: int
    B: int
    peer: str | None = None

    @property
    def recipe(self) -> Recipe:
        found = named(self.schedule)
        assert isinstance(found, Recipe)
        return found


def network(S: int, size: Size) -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(stage(size.width) for _ in range(S)))


def stage(width: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(width, width), nn.ReLU())))


def batch(B: int, size: Size) -> tuple[Tensor, Tensor]:
    """Inputs and targets [rows, width] of all micro-batches."""
    torch.manual_seed(1)
    x, target = torch.randn(2, B * size.rows, size.width)
    return x, target


# Every entry of the zoo that runs on two workers, with four stages where it takes them.
CASES = (
    Case("naive", 2, 8),
    Case("gpipe", 2, 8, "GPipe"),
    Case("one_f_one_b", 2, 8, "1F1B"),
    Case("zero_bubble", 2, 8),
    Case("interleaved", 4, 8, "Interleaved1F1B"),
    Case("v_schedule", 4, 8, "ZBV"),
    Case("breadth_first(G=1)", 4, 8, "LoopedBFS"),
    Case("depth_first(G=1)", 4, 8),
    Case("lpp(G=2)", 4, 8),
    Case("fslpp(G=2)", 4, 8),
    Case("ddp", 4, 2, "DDP"),
    Case("fsdp", 4, 2, "FSDP"),
    Case("wavelet_dp", 4, 4),
    Case("wavelet_mp", 2, 2),
)
