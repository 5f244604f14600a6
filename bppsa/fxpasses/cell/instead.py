"""Functions of PyTorch's whose insides the dispatcher cannot show as ops of rows, in terms of functions it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa.fxpasses.cell import modules
from bppsa.fxpasses.recording.one_hot import one_hot


def cosine_similarity(a: Tensor, b: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """A length below eps counts as eps, and keeps its gradient."""

    def normal(x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
        return x / (length + (length.clamp_min(eps) - length).detach())

    return (normal(a) * normal(b)).sum(dim)


def bilinear(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """sum of a_i w_oij b_j over i and j"""
    outputs, inputs, others = weight.shape
    by_a = (a @ weight.transpose(0, 1).reshape(inputs, outputs * others)).unflatten(-1, (outputs, others))
    y = (by_a * b.unsqueeze(-2)).sum(-1)
    return y if bias is None else y + bias


def pad(x: Tensor, counts: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Around the corner; NotImplemented for the other modes."""
    if mode != "circular" or len(counts) // 2 not in (x.dim() - 2, x.dim() - 1):
        return NotImplemented
    for i, (before, behind) in enumerate(zip(counts[::2], counts[1::2], strict=True)):
        n = x.shape[-1 - i]
        if not (0 <= before <= n and 0 <= behind <= n):
            return NotImplemented
        parts = [(n - before, before), (0, n), (0, behind)]
        x = torch.cat([x.narrow(-1 - i, first, count) for first, count in parts if count], -1 - i)
    return x


def one_step(cell: Callable[..., Any], states: int) -> Callable[..., Any]:
    """Of `torch.lstm` and its kin, called for one step; NotImplemented for all other calls."""

    def layers(
        given: Tensor,
        hx: Any,
        params: Any,
        biases: Any,
        count: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: Any = None,
    ) -> Any:
        carries = hx if states > 1 else (hx,)
        time, each = int(bool(batch_first)), 4 if biases else 2
        known = isinstance(batch_first, bool) and not bidirectional and isinstance(carries, (tuple, list))
        if not known or given.dim() != 3 or given.shape[time] != 1 or len(params) != each * count:
            return NotImplemented
        if dropout and train and count > 1:
            return NotImplemented
        x, nexts = given.squeeze(time), []
        for layer in range(count):
            own = params[each * layer : each * (layer + 1)]
            carry, x = cell(tuple(carry.select(0, layer) for carry in carries), x, *own)
            nexts.append(carry)
        return x.unsqueeze(time), *(layered([carry[i] for carry in nexts]) for i in range(states))

    return layers


def layered(states: Sequence[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(list(states))


MODES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN_TANH", "rnn_relu": "RNN_RELU"}
INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.cosine_similarity: cosine_similarity,
    functional.pad: pad,
    functional.bilinear: bilinear,
    functional.one_hot: one_hot,
    **{getattr(torch, name): one_step(*modules.KINDS[mode][:2]) for name, mode in MODES.items()},
}
