"""A batch norm that one forward calls in evaluation and in training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.pruned.support import pruned


class Twice(nn.Module):
    def __init__(self, modes: tuple[bool, bool]) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(512, 512), nn.BatchNorm1d(512), nn.Linear(512, 512)
        self.modes = modes

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.norm.train(self.modes[0])
        y = self.norm(h)
        self.norm.train(self.modes[1])
        return self.second(torch.relu(y) * torch.relu(self.norm(h)))


@pytest.mark.parametrize("modes", [(False, True), (True, False), (True, True), (False, False)])
def test_its_gradients_are_pytorchs(modes: tuple[bool, bool]) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(pruned(Twice(modes).double(), 0.97))
    models[1] = bppsa.compile(models[1])
    for turn in range(3):
        found = []
        for model in models:
            model.zero_grad()
            y = model(torch.randn(64, 512, generator=torch.Generator().manual_seed(turn)).double())
            y.square().mean().backward()
            found.append([y, *(p.grad for p in model.parameters()), *model.buffers()])
        for expected, got in zip(*found, strict=True):
            assert (expected - got.to_dense()).abs().max() < 1e-9
    if modes[0] != modes[1]:
        assert "its statistics are used in one call and changed by another" in str(models[1].report)
