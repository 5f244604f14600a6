"""torch's recurrent modules as cells: one step each, as a few lines of torch, recorded and split like anybody's.

A cell is (carry, x, *params) -> (next carry, y). Shapes: x [B, I], h [B, H or P], c [B, H]; weights as nn.RNNBase lays
them out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

Carry = tuple[Tensor, ...]


def rnn(activation: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Carry, Tensor]]:
    def cell(
        carry: Carry, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> tuple[Carry, Tensor]:
        h = activation(linear(x, w_ih, b_ih) + linear(carry[0], w_hh, b_hh))
        return (h,), h

    return cell


def gru(
    carry: Carry, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Carry, Tensor]:
    h = gru_gates(carry[0], linear(x, w_ih, b_ih), linear(carry[0], w_hh, b_hh))
    return (h,), h


def gru_gates(h: Tensor, x_gates: Tensor, h_gates: Tensor) -> Tensor:
    """The next h, of what the inputs and h give to the gates, [B, 3 H] each."""
    x_r, x_z, x_n = x_gates.chunk(3, 1)
    h_r, h_z, h_n = h_gates.chunk(3, 1)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return (h - n) * z + n


def lstm(
    carry: Carry, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Carry, Tensor]:
    h, c = lstm_gates(carry[1], linear(x, w_ih, b_ih) + linear(carry[0], w_hh, b_hh))
    return (h, c), h


def lstm_gates(c: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The next h and c, of gates [B, 4 H]."""
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def projected_lstm(carry: Carry, x: Tensor, *params: Tensor) -> tuple[Carry, Tensor]:
    """LSTM with `proj_size`: the last parameter is w_hr [P, H]."""
    (h, c), _ = lstm(carry, x, *params[:-1])
    h = linear(h, params[-1])
    return (h, c), h


def behind(cell: Callable[..., tuple[Carry, Tensor]], shown: int) -> Callable[..., tuple[Carry, tuple[()]]]:
    """The cell of the carries behind the first `shown`, which are given with x: (carry, (x, *shown), *params)."""

    def rest(carry: Carry, given: Carry, *params: Tensor) -> tuple[Carry, tuple[()]]:
        x, *known = given
        return cell((*known, *carry), x, *params)[0][shown:], ()

    return rest


# nn.RNNBase.mode -> (cell, states a layer has, gates a weight stacks)
KINDS: dict[str, tuple[Callable[..., tuple[Carry, Tensor]], int, int]] = {
    "RNN_TANH": (rnn(torch.tanh), 1, 1),
    "RNN_RELU": (rnn(torch.relu), 1, 1),
    "GRU": (gru, 1, 3),
    "LSTM": (lstm, 2, 4),
}
