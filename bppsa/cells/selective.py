"""Selective state spaces: their decay, input and output vectors are read from x."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bppsa.cells.base import Cell
from bppsa.errors import InputValueError

SHORTEST, LONGEST = 1e-3, 1e-1  # delta of a new cell


class MambaStep(Cell):
    """One step of Mamba's selective scan (Gu and Dao 2023, arXiv 2312.00752, algorithm 2, S6): J^T is diagonal.

    h <- exp(delta A) h + delta B x, y = C h + D x for each of the I channels, with A = -exp(A_log) [I, N], and with
    delta [I], B [N] and C [N] projected from x; delta is a softplus, of a projection of rank R. x_t and y_t are [B, I];
    the carry h is [B, I, N]. A begins as -1, ..., -N (S4D-Real), delta between 0.001 and 0.1, as in the authors' code;
    their convolution, gate and outer projections stand around the scan.

    Args:
        rank: R; by default I / 16, rounded up.

    Raises:
        InputValueError: `input_size`, `state_size` or `rank` is less than 1 (a ValueError).
    """

    def __init__(self, input_size: int, state_size: int = 16, rank: int | None = None) -> None:
        super().__init__(state_size)
        rank = math.ceil(input_size / 16) if rank is None else rank
        if min(input_size, state_size, rank) < 1:
            raise InputValueError(f"input_size={input_size}, state_size={state_size}, rank={rank}: less than 1")
        self.input_size, self.rank = input_size, rank
        self.x_proj = nn.Linear(input_size, rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(rank, input_size)
        self.A_log = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(input_size, 1))
        self.D = nn.Parameter(torch.ones(input_size))
        delta = torch.empty(input_size).uniform_(math.log(SHORTEST), math.log(LONGEST)).exp()
        with torch.no_grad():
            self.dt_proj.bias.copy_(delta.expm1().log())  # softplus gives delta back
            nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)

    def initial(self, batch: int) -> Tensor:
        """Return h, zeros [batch, I, N]."""
        return self.zeros(batch, self.input_size, self.hidden_size)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        dt, B, C = self.x_proj(x).split([self.rank, self.hidden_size, self.hidden_size], 1)
        delta = softplus(self.dt_proj(dt))  # [B, I]
        A = -torch.exp(self.A_log)
        h = torch.exp(delta.unsqueeze(2) * A) * h + (delta * x).unsqueeze(2) * B.unsqueeze(1)
        return h, (h * C.unsqueeze(1)).sum(2) + self.D * x
