"""Ready cells for `bppsa.scan`: recurrences that libraries run op by op, each a few lines of torch to copy and change.

    carry, ys = bppsa.scan(cell, cell.initial(batch), xs)

Each is a Module `(carry, x_t) -> (carry, y_t)`; carries are [B, H] tensors or tuples of them, y_t is [B, H].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class Cell(nn.Module):
    """`initial(batch)` is the carry before the first step: zeros."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def zeros(self, batch: int) -> Tensor:
        parameter = next(self.parameters())
        return parameter.new_zeros(batch, self.hidden_size)

    def initial(self, batch: int) -> Tensor:
        """[batch, H]"""
        return self.zeros(batch)


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

    def initial(self, batch: int) -> State:  # type: ignore[override]
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

    def initial(self, batch: int) -> State:  # type: ignore[override]
        return self.zeros(batch), self.zeros(batch)

    def forward(self, state: State, x: Tensor) -> tuple[State, Tensor]:
        h, c = state
        gates = self.input_norm(self.input(x)) + self.hidden_norm(self.hidden(h))
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.state_norm(c))
        return (h, c), h


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
