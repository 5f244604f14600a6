"""Models of the tests, at the top of a module so that they pickle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bppsa import strategies
from bppsa.frontend.rnn.classes import rewrite

KINDS = (nn.RNN, nn.GRU, nn.LSTM)


def fast(model: nn.Module) -> Any:
    return rewrite(model, strategies.sequential())[0]


def flat(result: Any) -> list[Tensor]:
    """The tensors of a recurrent module's result: output (data of a packed one), final states."""
    output, states = result
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(states if isinstance(states, tuple) else (states,))]


def equal(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(flat(left), flat(right), strict=True))


class Tagger(nn.Module):
    """Recurrent modules as parts of something larger: registered, shared, in containers, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.encoder = nn.GRU(4, 4, num_layers=2)
        self.tower = nn.ModuleList([nn.RNN(4, 4), nn.ModuleDict({"up": nn.LSTM(4, 4), "same": self.encoder})])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.plain = [nn.GRU(4, 4), {"deep": (nn.RNN(4, 4), 3)}]
        self.last: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        y, self.last = self.encoder(self.embedding(tokens))
        y, _ = self.encoder(y)
        y, _ = self.tower[0](y)
        y, _ = self.tower[1]["up"](y)
        y, _ = self.plain[0](y)
        y, _ = self.plain[1]["deep"][0](y)
        return self.head(y.flatten(0, 1))


class Named(nn.GRU):
    """A subclass that adds something and keeps the forward."""

    def __init__(self, size: int, tag: str) -> None:
        super().__init__(size, size)
        self.tag = tag

    def double(self) -> int:
        return 2 * self.hidden_size


class Scaled(nn.GRU):
    """A subclass with a forward of its own."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        y, h = super().forward(input, hx)
        return 2 * y, h


class Reassigning(nn.Module):
    """State kept in an attribute and a buffer, a list that grows, a hook that is its own method."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 3)
        self.h: Tensor | None = None
        self.seen: list[int] = []
        self.register_buffer("count", torch.zeros(()))
        self.handle = self.gru.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, result: Any) -> None:
        self.seen.append(len(args[0]))

    def forward(self, x: Tensor) -> Tensor:
        y, self.h = self.gru(x, self.h)
        self.count = self.count + 1
        return y
