"""The two cells of xLSTM (Beck et al. 2024, arXiv 2405.04517): exponential gates, held within range by a stabiliser m.

m is the logarithm of the largest weight that the memory has given to a step so far; the memory and its normaliser n are
kept divided by exp(m), so that no exponential overflows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from bppsa.cells.base import Cell, width_of_heads


def remembering(heads: int, units: int) -> Tensor:
    """Return biases of forget gates [heads * units], from 3 to 6 within each head: memories of 20 to 400 steps."""
    return torch.linspace(3.0, 6.0, units).repeat(heads)


class sLSTM(Cell):
    """The LSTM with exponential gates, and memories that mix within heads (Beck et al. 2024, section 2.2, equations 8
    to 17).

    x_t is [B, I]; the carry is (h, c, n, m), [B, H] each; y_t is h. i is an exponential, f a sigmoid. Of the previous h
    a unit reads its own head's part alone, through `hidden` [heads, D, 4 D] with D = H / heads; its columns, and the
    rows of `input` within a head, are those of z, i, f and o. The authors' block normalises h by head after the cell.

    Raises:
        InputValueError: `heads` parts of equal width do not make `hidden_size` (a ValueError).
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int = 4) -> None:
        super().__init__(hidden_size)
        self.heads, width = heads, width_of_heads(hidden_size, heads)
        self.input = nn.Linear(input_size, 4 * hidden_size)
        bound = 1 / math.sqrt(width)
        self.hidden = nn.Parameter(torch.empty(heads, width, 4 * width).uniform_(-bound, bound))
        with torch.no_grad():
            self.input.bias.view(heads, 4, width)[:, 2] = remembering(heads, width).view(heads, width)

    def initial(self, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (h, c, n, m), [batch, H] each: zeros, and m of minus infinity."""
        empty = self.zeros(batch)
        return empty, empty, empty, empty - torch.inf

    def forward(self, state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        h, c, n, m = state
        mixed = torch.einsum("bhi,hij->bhj", h.unflatten(1, (self.heads, -1)), self.hidden)
        gates = self.input(x).unflatten(1, (self.heads, -1)) + mixed  # [B, heads, 4 D]
        z, i, f, o = (gate.flatten(1) for gate in gates.chunk(4, 2))
        kept = logsigmoid(f) + m
        m = torch.maximum(kept, i)
        i, f = torch.exp(i - m), torch.exp(kept - m)
        c = f * c + i * torch.tanh(z)
        n = f * n + i
        h = torch.sigmoid(o) * c / n
        return (h, c, n, m), h


class mLSTM(Cell):
    """The LSTM whose memory is a matrix a head (Beck et al. 2024, section 2.3, equations 19 to 27).

    x_t is [B, I]; the carry is (C, n, m), [B, heads, D, D], [B, heads, D] and [B, heads] with D = H / heads; y_t is
    [B, H]. C maps keys to values. i is an exponential, f a sigmoid; both, and q, k, v and o, are read from x_t alone.

    Raises:
        InputValueError: `heads` parts of equal width do not make `hidden_size` (a ValueError).
    """

    def __init__(self, input_size: int, hidden_size: int, heads: int = 4) -> None:
        super().__init__(hidden_size)
        self.heads, self.width = heads, width_of_heads(hidden_size, heads)
        self.query, self.key, self.value = (nn.Linear(input_size, hidden_size) for _ in range(3))
        self.input_gate, self.forget_gate = nn.Linear(input_size, heads), nn.Linear(input_size, heads)
        self.output_gate = nn.Linear(input_size, hidden_size)
        with torch.no_grad():
            self.forget_gate.bias.copy_(remembering(1, heads))

    def initial(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (C, n, m), zeros [batch, heads, D, D], [batch, heads, D] and [batch, heads]."""
        sizes = self.heads, self.width
        return self.zeros(batch, *sizes, self.width), self.zeros(batch, *sizes), self.zeros(batch, self.heads)

    def forward(self, state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        C, n, m = state
        q, k, v = (part(x).unflatten(1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        k = k / math.sqrt(self.width)
        i, kept = self.input_gate(x), logsigmoid(self.forget_gate(x)) + m
        m = torch.maximum(kept, i)
        i, f = torch.exp(i - m).unsqueeze(2), torch.exp(kept - m).unsqueeze(2)
        C = f.unsqueeze(3) * C + i.unsqueeze(3) * torch.einsum("bhv,bhk->bhvk", v, k)
        n = f * n + i * k
        scale = torch.maximum((n * q).sum(2).abs(), torch.exp(-m))
        h = torch.einsum("bhvk,bhk->bhv", C, q) / scale.unsqueeze(2)
        return (C, n, m), torch.sigmoid(self.output_gate(x)) * h.flatten(1)
