"""A small pruned network by kernels for another machine than this: python -m tests.pruned.narrow [flags of a compiler]

Says nothing where they agree with PyTorch. A process of its own, as libraries that are loaded stay.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn

import bppsa
from bppsa.codegen.cpu import build
from bppsa.plan import sparse
from tests.pruned.support import assert_same_step, kernels, pruned

TOLERANCE = 1e-5  # of single precision


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.GELU()),
        *(nn.Flatten(), nn.Linear(54, 5)),
    )


def main(flags: list[str]) -> None:
    build.FLAG_SETS = ((*build.BASE, "-fopenmp", *flags),)
    build.cpu_features = lambda: ""  # the tiles of a machine with few registers
    sparse.MARGIN = 0.0
    torch.manual_seed(0)
    model = network()
    plain, fast = pruned(copy.deepcopy(model), 0.7), bppsa.compile(pruned(model, 0.7))
    for samples in (3, 19):  # a part of one block, and more than one
        assert_same_step(plain, fast, torch.randn(samples, 3, 24, 24), TOLERANCE)
    assert set(kernels(fast)) == {"sparse"}


if __name__ == "__main__":
    main(sys.argv[1:])
