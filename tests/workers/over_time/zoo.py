"""Recurrent models as users write them, with where their time is, and losses of all steps and of the last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "rnn-tanh": nn.RNN,
    "rnn-relu": partial(nn.RNN, nonlinearity="relu"),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
    "lstm-proj": partial(nn.LSTM, proj_size=3),
}
INPUTS, HIDDEN, CLASSES = 3, 4, 6


class Network(nn.Module):
    """x, [B, T, INPUTS] or [T, B, INPUTS], and a state -> y, with CLASSES for INPUTS, and the final state.

    A Linear before and behind the recurrent module, where `around` is asked for; else y is the module's.
    """

    def __init__(self, kind: str, *, around: bool = True, **flags: Any) -> None:
        super().__init__()
        self.before = nn.Linear(INPUTS, INPUTS) if around else nn.Identity()
        self.recurrent = KINDS[kind](INPUTS, HIDDEN, **flags)
        self.behind = nn.Linear(self.width, CLASSES) if around else nn.Identity()

    @property
    def width(self) -> int:
        return self.recurrent.proj_size or HIDDEN

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self.recurrent(self.before(x), state)
        return self.behind(y), state

    def state(self, rows: int) -> Any:
        """An initial state, whose gradient is wanted."""
        widths = [self.width, HIDDEN][: 1 + isinstance(self.recurrent, nn.LSTM)]
        states = [torch.randn(self.recurrent.num_layers, rows, width, requires_grad=True) for width in widths]
        return tuple(states) if len(states) > 1 else states[0]


class Steps(Network):
    """The scores of each step alone."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        return super().forward(x, state)[0]


class LastStep(Network):
    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        y, _ = super().forward(x, state)
        return y[:, -1] if self.recurrent.batch_first else y[-1]


class FinalState(Network):
    """All of it, side by side."""

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        _, state = super().forward(x, state)
        states = state if isinstance(self.recurrent, nn.LSTM) else (state,)
        return torch.cat([s.transpose(0, 1).flatten(1) for s in states], 1)


class Words(nn.Module):
    """Numbers [B, T] -> scores [B, T, CLASSES]: residual layers of two kinds, a norm, and weights that are tied."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, HIDDEN)
        self.first = nn.GRU(HIDDEN, HIDDEN, 2, batch_first=True, dropout=dropout)
        self.second = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(HIDDEN, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.embedding(x))
        x = x + self.first(x)[0]
        x = x + self.second(self.norm(x))[0]
        return self.head(x)


def words(rows: int, steps: int) -> tuple[Tensor, Tensor]:
    """Numbers for `Words`, and those that follow."""
    pieces = torch.randint(CLASSES, (rows, steps + 1))
    return pieces[:, :-1], pieces[:, 1:]


def of_words(scores: Tensor, target: Tensor) -> Tensor:
    """A mean over rows and steps."""
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def of_values(y: Tensor, target: Tensor) -> Tensor:
    """A mean over all that it reads."""
    return ((y - target).square() + (y * target).sin()).mean()
