"""Loops that are left to PyTorch: the reason tells what stands in the way, with its line and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, N, x


class Halves(Cell):
    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            if t in (3, 7):
                h = h * 0.5
        return h


class Spectral(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(H, H))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.norm(self.cell(x[:, t], h))
        return h


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(12 + N, 12)

    def forward(self, x: Tensor) -> Any:
        z = x.new_zeros(len(x), 3, 4)
        for t in range(x.shape[1]):
            p = self.logits(torch.cat([z.flatten(1), x[:, t]], 1)).view(-1, 3, 4).softmax(-1)
            drawn = torch.multinomial(p.view(-1, 4), 1).view(-1, 3)
            z = nn.functional.one_hot(drawn, 4).to(p.dtype) + p - p.detach()
        return z


class KeysAndValues(Cell):
    """With what only Python does around the loop, which is given a view of what it reads."""

    calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        x = x * 1.0
        y, keys = x[:, 0], x.new_zeros(len(x), 0, N)
        for t in range(x.shape[1]):
            keys = torch.cat([keys, y[:, None]], 1)
            y = (keys * (keys * y[:, None]).sum(-1, keepdim=True).softmax(1)).sum(1) + x[:, t]
        return y


class Segments(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for segment in x.split(4, 1):
            for t in range(segment.shape[1]):
                h = self.cell(segment[:, t], h)
                out.append(h)
            h = h.detach()
        return torch.stack(out, 1)


REASONS = {
    Segments: ["runs 4 steps at most before it ends and begins again"],
    Halves: ["h = h * 0.5", "this is done in one, and not in the one before"],
    Spectral: ["self.norm(", "given or holds, as a batch norm or spectral norm in training does"],
    Classes: ["torch.multinomial(", "gumbel_softmax(hard=True)"],
    KeysAndValues: ["keys", "a tensor of [3, 1, 3] is one of [3, 2, 3] a step later"],
}


@pytest.mark.parametrize("cls", REASONS, ids=lambda cls: cls.__name__)
def test_the_reason_is_told(cls: type[nn.Module]) -> None:
    pair = Pair(cls())
    for seed in range(3):
        (decision,) = pair.call(x(), seed=seed)
    assert decision.strategy == "pytorch"
    assert all(words in decision.reason for words in REASONS[cls]), decision.reason
