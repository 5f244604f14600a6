"""Loops that write into what they return, step by step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.loops.cells import B, Cell, H, N, row


@row("adds to what is there")
class Accumulates(Cell):
    """Twice a step, and once more in a loop that goes the other way."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.GRUCell(N, H)

    def forward(self, x: Tensor) -> Tensor:
        h = g = self.start(x)
        out = self.head.weight.mean() * x.new_ones(len(x), x.shape[1], H)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out[:, t] += h
            out[:, t] *= 1 - h
        for t in reversed(range(x.shape[1])):
            g = self.other(x[:, t], g)
            out[:, t : t + 1].sub_(g[:, None], alpha=0.5)
        return out


@row("adds to an input's copy")
class Residual(Cell):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, y, losses = self.start(x), x.clone(), torch.zeros(2, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            y[:, t] += h[:, :N]
            losses[0] += h.pow(2).mean()
            losses[1] += h.abs().mean() / x.shape[1]
        return y, losses


@row("midpoint rule", lambda: torch.randn(B, N, dtype=torch.float64, requires_grad=True))
class Midpoint(nn.Module):
    """Both halves of a step do the same ops."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(N, N)

    def slope(self, y: Tensor) -> Tensor:
        return torch.tanh(self.net(y))

    def forward(self, y: Tensor) -> Tensor:
        found = []
        for _ in range(12):
            y = y + 0.1 * self.slope(y + 0.05 * self.slope(y))
            found.append(y)
        return torch.stack(found)
