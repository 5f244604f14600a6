"""Models whose forward does around its loop what only Python can do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.loops.cells import Cell, H, N

AROUND: list[type[Cell]] = []


def around(cls: type[Cell]) -> type[Cell]:
    AROUND.append(cls)
    return cls


@around
class Counted(Cell):
    """As a layer that draws its masks ahead, and counts how many it has used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def forward(self, x: Tensor) -> Tensor:
        self.used += len(x)
        h = self.start(x) + self.used % 7
        return self.run(x, h)

    def run(self, x: Tensor, h: Tensor) -> Tensor:
        out = []
        mask = torch.full_like(h, 0.5)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * mask
            out.append(h)
        return torch.stack(out, 1)


@around
class Normed(Cell):
    """A batch norm, which counts in training, before the loop and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(N), nn.BatchNorm1d(H)

    def forward(self, x: Tensor) -> Tensor:
        x, h = self.norm(x.transpose(1, 2)).transpose(1, 2), self.start(x)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.last(h)


@around
class FirstStep(Normed):
    """A step that the loop reads too is what it begins with: two arguments share memory."""

    def forward(self, x: Tensor) -> Tensor:
        x, given = self.norm(x.transpose(1, 2)).transpose(1, 2), x.detach()
        h, last = self.start(x), given[:, 0]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] + last, h)
            last = given[:, t]
        return self.last(h)


@around
class Written(Normed):
    """Into tensors that the model holds, one of them by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("trace", torch.zeros(64, H))

    def forward(self, x: Tensor) -> Tensor:
        x, h = self.norm(x.transpose(1, 2)).transpose(1, 2), self.start(x)
        self.out = out = x.new_zeros(*x.shape[:2], H)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            self.out[:, t] = h
            self.out[:, t] *= 2.0
            self.trace[t] += h.detach().mean(0)
        self.out = self.out.detach()
        return out


@around
class Stateful(Cell):
    h: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        h = self.start(x) if self.h is None or len(self.h) != len(x) else self.h
        out = x.new_zeros(*x.shape[:2], H)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out[:, t] = h
        self.h = h.detach()
        return out, h


@around
class Lengths(Cell):
    """Values of a tensor say how far the loop goes."""

    def forward(self, x: Tensor) -> Any:
        steps = int((x[:, :, 0] > -9).sum(1).max())
        h, t, seen = self.start(x), 0, []
        while t < steps:
            h = self.cell(x[:, t], h)
            seen.append(self.head(h))
            t += 1
        return torch.stack(seen), h, t


@around
class Branches(Cell):
    """On values, before the loop, and with its own list of states behind another."""

    def forward(self, x: Tensor) -> Any:
        states = [self.start(x)]
        if bool((x.detach() == 0).all()):
            return states[0]
        for t in range(x.shape[1]):
            states.append(self.cell(x[:, t], states[-1]))
        for t in range(x.shape[1]):
            states[t] = states[t] + 1
        return states


@around
class Nested(Cell):
    """Lists in a list, of a state a layer, and a dict of what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.upper = nn.GRUCell(H, H)
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Any:
        self.calls.append(len(self.calls))
        layers = [[self.start(x)], [self.start(x)]]
        seen: dict[str, Any] = {"all": [], "sum": x.new_zeros(len(x), H)}
        first = layers[0]
        for t in range(x.shape[1]):
            layers[0].append(self.cell(x[:, t], layers[0][-1]))
            layers[1].append(self.upper(layers[0][-1], layers[1][-1]))
            seen["all"].append(layers[1][-1])
            seen["sum"] = seen["sum"] + layers[1][-1]
        return first[-1], layers[1], seen, len(first)


@around
class InPlace(Cell):
    """A loss and a table that are added to."""

    def forward(self, x: Tensor) -> Any:
        self.called = True
        h, loss, table = self.start(x), x.new_zeros(()), x.new_zeros(x.shape[1], H)
        row = table[0]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            loss += self.head(h).square().mean()
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            table[t] += h.sum(0)
        return loss, table, row, t


@around
class Closure(Cell):
    """What the loop calls is a variable, a function within the forward, or the class before."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.called = (0.5, 0.25), 0

    def squash(self, h: Tensor) -> Tensor:
        return torch.tanh(h) * self.scales[0]

    def forward(self, x: Tensor) -> Any:
        self.called += 1
        cell, out, h = self.cell, [], self.start(x)
        gain = 1.0 if self.called % 2 else 0.5

        def step(h: Tensor, x: Tensor) -> Tensor:
            return cell(x, h) * gain

        for t in range(x.shape[1]):
            h = self.squash(step(h, x[:, t]))
            out.append(h)
        return torch.stack(out), h


@around
class OfBase(Counted):
    """The loop of a class before, which asks for `super()`."""

    def squash(self, h: Tensor) -> Tensor:
        return h * 0.5

    def run(self, x: Tensor, h: Tensor) -> Tensor:
        for t in reversed(range(x.shape[1])):
            h = self.squash(super().start(x) + self.cell(x[:, t], h))
        return h


@around
class Drawn(Cell):
    """A property that draws, and an attribute of the class."""

    factor = 0.5

    @property
    def noise(self) -> Tensor:
        return torch.randn(H, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        self.before, h = True, self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * self.factor + self.noise
        return h


@around
class Static(Cell):
    """A function of the class that has a loop, called on the class."""

    @staticmethod
    def last(states: list[Tensor]) -> Tensor:
        total = states[0]
        for state in states[1:]:
            total = total + 0.5 * state
        return total

    def forward(self, x: Tensor) -> Any:
        self.before, h, out = True, self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return type(self).last(out), self.last(out[:2])


@around
class Defaults(Normed):
    """Of its class, one of which it has made its own."""

    scale, calls, kept = 0.5, 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x, h = self.norm(x.transpose(1, 2)).transpose(1, 2), self.start(x)
        self.kept = x.new_zeros(x.shape[1], len(x), H)  # type: ignore[assignment]
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h) * self.scale
            self.kept[t] = h  # type: ignore[index]
        kept, self.kept = self.kept, None
        return self.last(h) + kept.mean(0)  # type: ignore[attr-defined]
