"""Units that each read only their own past: J^T, the transposed Jacobian of one step, is diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bppsa.cells.base import Cell


class MinGRU(Cell):
    """A GRU whose gates read only x (Feng et al. 2024, section 3.1): J^T is diagonal."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.gate, self.candidate = nn.Linear(input_size, hidden_size), nn.Linear(input_size, hidden_size)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.sigmoid(self.gate(x))
        h = (1 - z) * h + z * self.candidate(x)
        return h, h


class IndRNN(Cell):
    """Neurons that each read only their own past (Li et al. 2018, equation 2), with a ReLU: J^T is diagonal."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.input = nn.Linear(input_size, hidden_size)
        self.recurrent = nn.Parameter(torch.empty(hidden_size).uniform_(0, 1 / math.sqrt(hidden_size)))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.input(x) + self.recurrent * h)
        return h, h


class SRU(Cell):
    """A simple recurrent unit (Lei et al. 2018, equations 1 to 4): its gates read x, and of the state c only their own
    unit's, through a vector. The output skips to x, by a product where the widths differ. J^T is diagonal."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.input = nn.Linear(input_size, hidden_size, bias=False)
        self.forget, self.reset = nn.Linear(input_size, hidden_size), nn.Linear(input_size, hidden_size)
        bound = 1 / math.sqrt(hidden_size)
        self.forget_state = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        self.reset_state = nn.Parameter(torch.empty(hidden_size).uniform_(-bound, bound))
        same = input_size == hidden_size
        self.skip = nn.Identity() if same else nn.Linear(input_size, hidden_size, bias=False)

    def forward(self, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        f = torch.sigmoid(self.forget(x) + self.forget_state * c)
        r = torch.sigmoid(self.reset(x) + self.reset_state * c)
        c = f * c + (1 - f) * self.input(x)
        return c, r * c + (1 - r) * self.skip(x)


class DiagonalSSM(Cell):
    """A real diagonal state-space layer, h <- a h + B x, y = C h + D x with D a vector: J^T is diagonal.

    a is exp(-exp(rate)), between 0 and 1 whatever the optimizer does (Orvieto et al. 2023, section 3.3); it starts as
    exp(-0.01 n) for n = 1, ..., N, the decays of S4D-Real at a step of 0.01 (Gu et al. 2022, arXiv 2206.11893). The
    carry is [B, N], y_t is [B, I] as x_t is.
    """

    def __init__(self, input_size: int, state_size: int) -> None:
        super().__init__(state_size)
        self.rate = nn.Parameter(torch.log(0.01 * torch.arange(1.0, state_size + 1)))
        self.input = nn.Linear(input_size, state_size, bias=False)
        self.output = nn.Linear(state_size, input_size, bias=False)
        self.skip = nn.Parameter(torch.ones(input_size))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.exp(-torch.exp(self.rate)) * h + self.input(x)
        return h, self.output(h) + self.skip * x
