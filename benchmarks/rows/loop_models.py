"""Models with a loop over time, as people write them; each takes a width."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Stacked(nn.Module):
    """nn.GRUCell, a list, and a stack."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.width = nn.GRUCell(width, width), width

    def forward(self, x: Tensor) -> Tensor:  # [B, T, I]
        h, out = x.new_zeros(len(x), self.width), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


class Inline(nn.Module):
    """An LSTM with gates of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.h.in_features)
        out = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)


class Resets(Stacked):
    """Episodes end within the rows, as in reinforcement learning."""

    def forward(self, x: Tensor) -> Tensor:
        h, out, done = x.new_zeros(len(x), self.width), [], (x[..., :1] > 1.5).to(x.dtype)
        for x_t, done_t in zip(x.unbind(1), done.unbind(1), strict=True):
            h = self.cell(x_t, h * (1 - done_t))
            out.append(h)
        return torch.stack(out, 1)


class LightGru(nn.Module):
    """LiGRU (Ravanelli et al., 2018), its inputs projected before the loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        w = self.w(x)
        h, out = x.new_zeros(len(x), self.w.in_features), []
        for k in range(w.shape[1]):
            a, z = (w[:, k] + self.u(h)).chunk(2, 1)
            z = torch.sigmoid(z)
            h = z * h + (1 - z) * torch.relu(a)
            out.append(h)
        return torch.stack(out, 1)


class Feedback(Stacked):
    """A decoder that reads its own output."""

    def forward(self, x: Tensor) -> Tensor:
        h, y, out = x.new_zeros(len(x), self.width), x[:, 0], []
        for _ in range(x.shape[1]):
            h = self.cell(y, h)
            y = torch.tanh(h)
            out.append(y)
        return torch.stack(out, 1)


class Liquid(nn.Module):
    """A liquid time-constant network (Hasani et al., 2021): six steps of a solver for each of the inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(width, width), nn.Linear(width, width)
        self.tau, self.a = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), self.h.in_features), []
        for t in range(x.shape[1]):
            drive = self.x(x[:, t])
            for _ in range(6):
                f = torch.sigmoid(drive + self.h(h))
                h = (h + 0.1 * f * self.a) / (1 + 0.1 * (1 / self.tau + f))
            out.append(h)
        return torch.stack(out, 1)


class Returns(nn.Module):
    """Discounted returns of episodes, a number for each of the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.discount = nn.Parameter(torch.tensor(0.99))

    def forward(self, rewards: Tensor, done: Tensor) -> Tensor:  # [T, B] both
        total, out = torch.zeros_like(rewards[0]), []
        for t in reversed(range(len(rewards))):
            total = rewards[t] + self.discount * (1 - done[t]) * total
            out.insert(0, total)
        return torch.stack(out)


class Kalman(nn.Module):
    """A filter of one series, without a batch: its covariance is a matrix of 4 x 4."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.turn = nn.Parameter(0.9 * torch.eye(4) + 0.05 * torch.randn(4, 4))
        self.seen = nn.Parameter(torch.randn(2, 4))

    def forward(self, z: Tensor) -> Tensor:  # [T, 2]
        x, P, out = z.new_zeros(4), torch.eye(4), []
        for t in range(len(z)):
            x, P = self.turn @ x, self.turn @ P @ self.turn.T + 0.1 * torch.eye(4)
            gain = P @ self.seen.T @ torch.linalg.inv(self.seen @ P @ self.seen.T + torch.eye(2))
            x, P = x + gain @ (z[t] - self.seen @ x), P - gain @ self.seen @ P
            out.append(x)
        return torch.stack(out)


class Pendulum(nn.Module):
    """A controller through a simulator, all in numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.tensor([-12.0, -4.0]))

    def forward(self, start: Tensor) -> Tensor:  # [T]; its first number
        angle, speed, out = start[0], torch.zeros(()), []
        for _ in range(len(start)):
            push = 5 * torch.tanh(self.gains[0] * angle + self.gains[1] * speed)
            speed = speed + 0.02 * (9.8 * torch.sin(angle) + push)
            angle = angle + 0.02 * speed
            out.append(angle)
        return torch.stack(out)


class OverTheBatch(nn.Module):
    """A norm over the batch in each step, which mixes its rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.again = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h, out = x[:, 0], []
        for t in range(1, x.shape[1]):
            z = self.again(h) + x[:, t]
            h = torch.tanh((z - z.mean(0)) / (z.var(0) + 1e-5).sqrt())
            out.append(h)
        return torch.stack(out, 1)
