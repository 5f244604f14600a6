"""Recurrent units whose gates read the whole state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bppsa.cells.base import Cell, State
from bppsa.errors import InputValueError


class ResetGRU(Cell):
    """A GRU whose state restarts within a sequence, as at the end of an episode in reinforcement learning.

    x_t is (x [B, I], reset [B] bool): where `reset`, the state is zero before the step reads it. A reset selects, it
    does not multiply: a NaN before it is gone after it, and no gradient crosses it.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.cell = nn.GRUCell(input_size, hidden_size)

    def forward(self, h: Tensor, x: State) -> tuple[Tensor, Tensor]:
        x_t, reset = x
        h = self.cell(x_t, torch.where(reset.unsqueeze(1), 0.0, h))
        return h, h


class ResetLSTM(Cell):
    """An LSTM whose state restarts within a sequence; x_t is (x [B, I], reset [B] bool) as for ResetGRU."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.cell = nn.LSTMCell(input_size, hidden_size)

    def initial(self, batch: int) -> State:
        """Return (h, c), zeros [batch, H] each."""
        return self.zeros(batch), self.zeros(batch)

    def forward(self, state: State, x: State) -> tuple[State, Tensor]:
        x_t, reset = x
        at = reset.unsqueeze(1)
        h, c = self.cell(x_t, (torch.where(at, 0.0, state[0]), torch.where(at, 0.0, state[1])))
        return (h, c), h


class LayerNormLSTM(Cell):
    """An LSTM with layer normalisation of the gates and of the cell state (Ba et al. 2016, equations 20 to 22)."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.input = nn.Linear(input_size, 4 * hidden_size)
        self.hidden = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.input_norm, self.hidden_norm = nn.LayerNorm(4 * hidden_size), nn.LayerNorm(4 * hidden_size)
        self.state_norm = nn.LayerNorm(hidden_size)

    def initial(self, batch: int) -> State:
        """Return (h, c), zeros [batch, H] each."""
        return self.zeros(batch), self.zeros(batch)

    def forward(self, state: State, x: Tensor) -> tuple[State, Tensor]:
        h, c = state
        gates = self.input_norm(self.input(x)) + self.hidden_norm(self.hidden(h))
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.state_norm(c))
        return (h, c), h


class GroupedGRU(Cell):
    """A GRU for each of `groups` equal parts of x and of the state, which see nothing of each other (Gao et al. 2018,
    "group recurrent networks"): J^T is block-diagonal, a block a group.

    A layer that mixes features has to follow, or parts never meet. Raises InputValueError (a ValueError) where a width
    is no multiple of `groups`.
    """

    def __init__(self, input_size: int, hidden_size: int, groups: int) -> None:
        super().__init__(hidden_size)
        if input_size % groups or hidden_size % groups:
            raise InputValueError(
                f"input_size={input_size}, hidden_size={hidden_size}: not multiples of {groups} groups"
            )
        self.groups = groups
        self.parts = nn.ModuleList(nn.GRUCell(input_size // groups, hidden_size // groups) for _ in range(groups))

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        pieces = zip(self.parts, x.chunk(self.groups, 1), h.chunk(self.groups, 1), strict=True)
        h = torch.cat([cell(x_part, h_part) for cell, x_part, h_part in pieces], 1)
        return h, h


class LiGRU(Cell):
    """A light GRU: no reset gate, and a ReLU in the candidate (Ravanelli et al. 2018, "Light gated recurrent units for
    speech recognition", section III), as SpeechBrain has it.

    z = sigmoid(W_z x + U_z h), h <- z h + (1 - z) relu(W_h x + U_h h). x_t is [B, I]; the carry and y_t are h, [B, H];
    the rows of `input` and `hidden` are those of the candidate, then of z. The recurrent weights begin orthogonal.

    The paper's batch norm is of W x, over rows and steps, and belongs before the scan: with `input_size` None the cell
    has no W, and x_t is what that norm gives, [B, 2 H].
    """

    def __init__(self, input_size: int | None, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.input = nn.Identity() if input_size is None else nn.Linear(input_size, 2 * hidden_size)
        self.hidden = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        for part in self.hidden.weight.detach().chunk(2):
            nn.init.orthogonal_(part)

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        candidate, z = (self.input(x) + self.hidden(h)).chunk(2, 1)
        z = torch.sigmoid(z)
        h = z * h + (1 - z) * torch.relu(candidate)
        return h, h
