"""Ready cells for `bppsa.scan`: recurrences that libraries run op by op, each a few lines of torch to copy and change.

    carry, ys = bppsa.scan(cell, cell.initial(batch), xs)

Each is a Module `(carry, x_t) -> (carry, y_t)`; carries are [B, H] tensors or tuples of them, y_t is [B, H].
J^T, the transposed Jacobian of one step, is named where it is not dense: a scan costs least there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bppsa.errors import InputValueError

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
