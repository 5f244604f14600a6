"""Ops of a whole layer, as the ops that they consist of where the layer is called for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

aten = torch.ops.aten
LSTM = 2  # of the op's modes


def spelled(func: Any, args: Sequence[Any]) -> Callable[[], Sequence[Tensor]] | None:
    """What gives the op's outputs but those that its backward alone reads; None where the op is written down itself."""
    of = SPELLINGS.get(func)
    return None if of is None else of(*args)


def lstm(
    x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor, h: Tensor, c: Tensor, *options: Any
) -> Callable[[], Sequence[Tensor]] | None:
    """One layer of oneDNN's nn.LSTM, which PyTorch takes for float32. x: [T, B, I]; h, c: [B, H] or [1, B, H]."""
    _, _, mode, _, _, has_biases, *_ = options
    if mode != LSTM or x.shape[0] != 1:
        return None
    biases = (b_x, b_h) if has_biases else (None, None)
    return partial(lstm_step, x, (w_x, w_h), biases, h, c)


def lstm_step(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gates = linear(x[0], weights[0], biases[0]) + linear(h.reshape(-1, h.shape[-1]), weights[1], biases[1])
    i, f, g, o = gates.chunk(4, 1)
    now = torch.sigmoid(f) * c.reshape(i.shape) + torch.sigmoid(i) * torch.tanh(g)
    y = torch.sigmoid(o) * torch.tanh(now)
    return y.unsqueeze(0), y.reshape(h.shape), now.reshape(c.shape)


SPELLINGS: Mapping[Any, Callable[..., Callable[[], Sequence[Tensor]] | None]] = {
    aten.mkldnn_rnn_layer.default: lstm,
}
