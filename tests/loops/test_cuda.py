"""On a GPU: loops over time become scans of its kernels, and compute what PyTorch computes there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bppsa
from tests.loops import models, more_models
from tests.loops.beside import Pair
from tests.loops.cells import FOUND, Cell, x

pytestmark = pytest.mark.gpu
TABLES = (models, more_models)  # whose rows are in FOUND
NAMES = (
    "list and stack",
    "RNNCell",
    "LSTMCell, cat",
    "time first, enumerate",
    "writes into a tensor",
    "insert(0), reversed time",
    "two layers in one loop",
    "bidirectional in one loop",
    "feedback of its own output",
    "resets",
    "own gates",
    "numbers that differ per step",
    "states of two steps before",
    "losses summed in the loop",
    "while, a step of nn.GRU",
    "a step of nn.LSTM, time first",
    "layer norm, elementwise state, 3 outputs",
    "liquid time constants",
)


def on_gpu(values: Any) -> Any:
    def moved(leaf: Any) -> Any:
        return leaf.detach().cuda().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(moved, values)


@pytest.mark.parametrize("name", NAMES)
def test_loop_becomes_a_scan(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = FOUND[name]()
    assert "sequential" in Pair(model.cuda(), strategy="sequential").strategies(*on_gpu(inputs))


def test_a_model_that_is_moved_between_calls() -> None:
    """A plan is of one device, also where only the arguments tell it."""
    pair, given = Pair(FOUND["list and stack"]()[0]), x()
    for moved in (nn.Module.cpu, nn.Module.cuda, nn.Module.cpu, nn.Module.cuda):
        pair.both(moved)
        pair.strategies(on_gpu(given) if moved is nn.Module.cuda else given)


class Noisy(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.cell(nn.functional.dropout(x_t), h)
            out.append(h)
        return torch.stack(out)


def test_random_numbers_of_a_gpu_are_pytorchs() -> None:
    model = Noisy().cuda()
    fast = bppsa.compile(model)
    for _ in range(3):
        fast(on_gpu(x().float()))
    assert "random numbers on a GPU" in str(bppsa.report(fast))


class OnTwo(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.tensor(0.5, dtype=torch.float64)  # stays on the CPU

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for x_t in x.unbind(1):
            h = self.cell(x_t, h) * self.rate
            out.append(h)
        return torch.stack(out)


def test_a_single_number_of_the_cpu() -> None:
    pair = Pair(OnTwo().double().cuda(), strategy="sequential")
    assert "sequential" in pair.strategies(on_gpu(x()))
