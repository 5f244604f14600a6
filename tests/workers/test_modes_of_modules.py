"""A scheduled model whose modules are in training or evaluation each for itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.workers import support
from tests.workers.test_modes import check_step, scheduled

pytestmark = pytest.mark.usefixtures("in_float64")


class Scaled(nn.Module):
    """Asks for its own mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (3 if self.training else 1)


class InAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.out = nn.ModuleList(Scaled() for _ in range(3)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def test_each_module_has_its_mode_whichever_comes_first() -> None:
    """A validation before the first step; a part that is frozen in evaluation, within a ModuleList."""
    model = InAList()
    compiled = scheduled(model)
    for each in (model, compiled):
        each.eval()
    with torch.no_grad():
        support.close(compiled(torch.ones(5, 4)), model(torch.ones(5, 4)))
    for each in (model, compiled):
        each.train()
    check_step(model, compiled)
    for each in (model, compiled):
        each.zero_grad()
        each.blocks[1].eval()
    check_step(model, compiled)
