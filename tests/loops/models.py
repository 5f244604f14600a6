"""Loops over time as people write them: how they go over time, and what they do with what they get."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.loops.cells import Cell, H, N, T, row, x


@row("list and stack")
class Stack(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return self.head(torch.stack(out, 1)), h


@row("RNNCell", x)
class Rnn(Stack):
    kind = nn.RNNCell


@row("LSTMCell, cat")
class Lstm(Cell):
    kind = nn.LSTMCell

    def forward(self, x: Tensor) -> Any:
        state, out = (self.start(x), self.start(x)), []
        for x_t in x.unbind(1):
            state = self.cell(x_t, state)
            out.append(state[0].unsqueeze(1))
        return torch.cat(out, dim=1), state


@row("time first, enumerate", lambda: x(dim=0))
class TimeFirst(Cell):
    def forward(self, x: Tensor) -> Any:
        h = x.new_zeros(x.shape[1], H)
        out = [None] * len(x)
        for t, x_t in enumerate(x):
            h = self.cell(x_t, h)
            out[t] = h
        return torch.stack(out)


@row("writes into a tensor")
class Writes(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = x.new_zeros(x.shape[0], x.shape[1], H)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out[:, t] = h
        return self.head(out)


@row("writes into an empty tensor, time first")
class WritesFirst(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = torch.empty(x.shape[1], x.shape[0], H, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t, :], h)
            out[t, :, :] = h
        return out


@row("growing cat")
class Grows(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = torch.empty(x.shape[0], 0, H, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out = torch.cat([out, h.unsqueeze(1)], dim=1)
        return out


@row("growing cat, time first")
class GrowsAlongTime(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out, states = self.start(x), torch.tensor([], dtype=x.dtype), None
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)
            out = torch.cat([out, h[None]])
            states = h[None] if states is None else torch.cat((states, h.sin().unsqueeze(0)), 0)
        return out, states


@row("insert(0), reversed time")
class Inserts(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in reversed(range(x.shape[1])):
            h = self.cell(x[:, t], h)
            out.insert(0, h)
        return torch.stack(out, 1)


@row("strided time", lambda: x(2 * T))
class Strided(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(0, x.shape[1], 2):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@row("last state only")
class Last(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


@row("two layers in one loop")
class Layers(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.GRUCell(H, H)

    def forward(self, x: Tensor) -> Any:
        h = [self.start(x), self.start(x)]
        out = []
        for t in range(x.shape[1]):
            h[0] = self.cell(x[:, t], h[0])
            h[1] = self.second(h[0], h[1])
            out.append(self.head(h[1]))
        return torch.stack(out, 1), h[0]


@row("layers outside, time inside")
class Outside(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(N, H), nn.GRUCell(H, H)])

    def forward(self, x: Tensor) -> Any:
        for cell in self.cells:
            h, out = self.start(x), []
            for t in range(x.shape[1]):
                h = cell(x[:, t], h)
                out.append(h)
            x = torch.stack(out, 1)
        return x


@row("bidirectional in one loop")
class Both(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.back = nn.GRUCell(N, H)

    def forward(self, x: Tensor) -> Any:
        h, g = self.start(x), self.start(x)
        ahead, behind = [], []
        steps = x.shape[1]
        for t in range(steps):
            h = self.cell(x[:, t], h)
            g = self.back(x[:, steps - 1 - t], g)
            ahead.append(h)
            behind.insert(0, g)
        return torch.cat([torch.stack(ahead, 1), torch.stack(behind, 1)], -1)


@row("encoder, then decoder")
class Decoder(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.GRUCell(2, H)

    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        y, out = self.head(h), []
        for _ in range(10):
            h = self.decoder(y, h)
            y = self.head(h)
            out.append(y)
        return torch.stack(out, 1)


@row("feedback of its own output")
class Feedback(Cell):
    def __init__(self) -> None:
        super().__init__(N + 2)

    def forward(self, x: Tensor) -> Any:
        h, y, out = self.start(x), x.new_zeros(x.shape[0], 2), []
        for t in range(x.shape[1]):
            h = self.cell(torch.cat([x[:, t], y], -1), h)
            y = torch.tanh(self.head(h))
            out.append(y)
        return torch.stack(out, 1)
