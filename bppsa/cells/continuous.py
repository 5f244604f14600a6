"""Cells in continuous time: their x_t come with the time since the one before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bppsa.cells.base import Cell, State


class CfC(Cell):
    """A closed-form continuous-time cell (Hasani et al. 2022, "Closed-form continuous-time neural networks"), as the
    authors' package ncps has it.

    h <- (1 - s) tanh(g(u)) + s tanh(k(u)) with s = sigmoid(a(u) gap + b(u)): two states between which the time that
    went by chooses, all read from u, a layer of `units` on x and the previous h. x_t is (x [B, I], gap [B]), where
    `gap` is the time since the previous step; the carry and y_t are h, [B, H].
    """

    def __init__(self, input_size: int, hidden_size: int, units: int = 128) -> None:
        super().__init__(hidden_size)
        self.backbone = nn.Linear(input_size + hidden_size, units)
        self.ff1, self.ff2 = nn.Linear(units, hidden_size), nn.Linear(units, hidden_size)
        self.time_a, self.time_b = nn.Linear(units, hidden_size), nn.Linear(units, hidden_size)
        for weight in (self.backbone, self.ff1, self.ff2, self.time_a, self.time_b):
            nn.init.xavier_uniform_(weight.weight)

    def forward(self, h: Tensor, x: State) -> tuple[Tensor, Tensor]:
        x_t, gap = x
        u = 1.7159 * torch.tanh(0.666 * self.backbone(torch.cat([x_t, h], 1)))
        s = torch.sigmoid(self.time_a(u) * gap.unsqueeze(1) + self.time_b(u))
        h = (1 - s) * torch.tanh(self.ff1(u)) + s * torch.tanh(self.ff2(u))
        return h, h
