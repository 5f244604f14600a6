"""A small pruned network, a GRU and a cell by kernels for other instructions: python -m tests.pruned.narrow LEVEL

Says nothing where they agree with PyTorch. A process of its own, as libraries that are loaded stay.
"""

from __future__ import annotations

import copy
import os
import sys

import torch
from torch import nn

import bppsa
from bppsa.codegen import isa
from bppsa.codegen.cpu import build
from bppsa.plan import sparse
from tests.pruned.support import assert_same_step, kernels, pruned

TOLERANCE, EXACT = 1e-5, 1e-11  # of single and of double precision


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.GELU()),
        *(nn.Flatten(), nn.Linear(54, 5)),
    )


def assert_same_recurrences() -> None:
    """A GRU, in vectors that its width fills and does not, and a cell whose rows are normalised."""
    gru, cell = nn.GRU(5, 19).double(), bppsa.cells.LayerNormLSTM(5, 19).double()
    fast = bppsa.compile(copy.deepcopy(gru), strategy="sequential")
    x = torch.randn(50, 3, 5, dtype=torch.float64)
    for ours, theirs, module in ((fast(x)[0], gru(x)[0], gru), (*both_ways(cell, x), cell)):
        parameters = list(module.parameters())
        own = parameters if module is cell else list(fast.parameters())
        got, expected = (torch.autograd.grad(y.square().sum(), of) for y, of in ((ours, own), (theirs, parameters)))
        for a, b in ((ours, theirs), *zip(got, expected, strict=True)):
            assert (a - b).norm() <= EXACT * b.norm(), (a - b).norm() / b.norm()


def both_ways(cell: bppsa.cells.Cell, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By a scan and by a loop."""
    carry, ys = cell.initial(x.shape[1]), []
    for step in x:
        carry, y = cell(carry, step)
        ys.append(y)
    return bppsa.scan(cell, cell.initial(x.shape[1]), x, strategy="sequential")[1], torch.stack(ys)


def main(level: str) -> None:
    os.environ[isa.VARIABLE] = level
    build.BASE = (*build.BASE, "-O1")  # half the time to build
    sparse.MARGIN = 0.0
    torch.manual_seed(0)
    assert_same_recurrences()
    model = network()
    plain, fast = pruned(copy.deepcopy(model), 0.7), bppsa.compile(pruned(model, 0.7))
    for samples in (3, 19):  # a part of one block, and more than one
        assert_same_step(plain, fast, torch.randn(samples, 3, 24, 24), TOLERANCE)
    assert set(kernels(fast)) == {"sparse"}


if __name__ == "__main__":
    main(*sys.argv[1:])
