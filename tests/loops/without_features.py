"""Loops whose state has a number for each of the batch, or no batch at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.loops.cells import B, H, N, T, row


def reals(*shape: int) -> Any:
    return lambda: torch.randn(shape, dtype=torch.float64, requires_grad=True)


@row("discounted returns", reals(T, B))
class Returns(nn.Module):
    def forward(self, rewards: Tensor) -> Tensor:
        total, found = torch.zeros_like(rewards[0]), []
        for t in reversed(range(len(rewards))):
            total = rewards[t] + 0.9 * total
            found.insert(0, total)
        return torch.stack(found)


@row("advantages with resets", reals(T, B), reals(T, B), lambda: torch.rand(T, B).double().round(), reals(B))
class Advantages(nn.Module):
    def forward(self, rewards: Tensor, values: Tensor, dones: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        found, advantage = torch.zeros_like(rewards), torch.zeros_like(last)
        for t in reversed(range(len(rewards))):
            behind = last if t == len(rewards) - 1 else values[t + 1]
            delta = rewards[t] + 0.9 * behind * (1 - dones[t]) - values[t]
            found[t] = advantage = delta + 0.8 * (1 - dones[t]) * advantage
        return found, found + values


@row("a controller's rate for each of the batch", reals(T, B), reals(B))
class Controller(nn.Module):
    def forward(self, target: Tensor, rate: Tensor) -> Tensor:
        place, summed, before, found = torch.zeros_like(rate), torch.zeros_like(rate), torch.zeros_like(rate), []
        for t in range(len(target)):
            error = target[t] - place
            summed = summed + 0.1 * error
            place = place + 0.1 * (rate * error + summed + 0.1 * (error - before))
            before = error
            found.append(place)
        return torch.stack(found, 1)


@row("no batch", reals(T, N))
class Unbatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again = nn.Linear(N, H), nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        h, found = x.new_zeros(H), []
        for step in x:
            h = torch.tanh(self.enter(step) + self.again(h))
            found.append(h)
        return torch.stack(found)


@row("a matrix as wide as it is high, from the left", reals(T, H), reals(H, H))
class FromTheLeft(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        h = x.new_zeros(H)
        for step in x:
            h = torch.tanh(w @ h + step)
        return h


@row("a number", reals(T))
class Number(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, total = x.new_zeros(()), x.new_zeros(())
        for t in range(len(x)):
            h = torch.tanh(0.5 * h.t() + x[t])
            total = total + h * (t + 1) / len(x)
        return h, total


@row("a filter's covariance", reals(T, H), reals(H, H))
class Covariance(nn.Module):
    def forward(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        mean, covariance = x.new_zeros(H), torch.eye(H, dtype=x.dtype)
        for t in range(len(x)):
            covariance = 0.5 * torch.tanh(turn @ covariance @ turn.T) + torch.eye(H, dtype=x.dtype)
            gain = covariance[:, :1] / (covariance[0, 0] + 3)
            mean = torch.tanh(turn @ mean) + gain[:, 0] * (x[t] - mean)
            covariance = covariance - gain @ covariance[:1]
        return mean, covariance


@row("a norm over the batch", reals(T, B, H))
class OverTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        h, found = x[0], []
        for t in range(1, len(x)):
            z = self.again(h) + x[t]
            h = torch.tanh((z - z.mean(0)) / (z.var(0) + 1e-3).sqrt())
            found.append(h)
        return torch.stack(found)


@row("shares of a whole", reals(T, H))
class Shares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h, found = x[0].softmax(0), []
        for t in range(1, len(x)):
            h = (torch.roll(h, 1) + x[t] * h.sum()).softmax(0)
            found.append(h)
        return torch.stack(found)
