"""Stages, run one after another, are the model: outputs, gradients, buffers; for batches other than the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import partition
from tests.fxpasses.partition.support import compare


@pytest.fixture(autouse=True)
def float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def mlp() -> nn.Module:
    layers = ((nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.3)) for _ in range(5))
    return nn.Sequential(*(layer for group in layers for layer in group))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)) + x, inplace=True)
        return x.flatten(1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(12, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = torch.tanh(layer(x))
            skips.append(x)
        for layer in self.up:
            x = torch.tanh(layer(torch.cat([x, skips.pop()], -1)))
        return x


CASES = {
    "mlp": (mlp, lambda B: (torch.randn(B, 6, requires_grad=True),)),
    "residual": (Residual, lambda B: (torch.randn(B, 3, 4, 4, requires_grad=True),)),
    "unet": (UNet, lambda B: (torch.randn(B, 6, requires_grad=True),)),
}


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_model(case: str, stages: int) -> None:
    make, inputs = CASES[case]
    model = make()
    cut = partition(model, inputs(4), stages)
    assert len(cut) == stages
    for B in (4, 2, 7):
        compare(model, cut, *inputs(B))


def test_modules_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.GRU(5, 4), nn.Identity())
    cut = partition(model, torch.randn(3, 2, 4), [model[0], model[1]])
    compare(nn.Sequential(model[0], model[1]), cut, torch.randn(3, 4, 4))
