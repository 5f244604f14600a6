"""A Kalman filter as a loop, whose carries are a state and its covariance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.loops.cells import N, row

STATE, MEASURED = 3, 2


@row("a Kalman filter")
class Filter(nn.Module):
    """Gives the states, and how likely all that was measured is."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.eye(STATE) + 0.1 * torch.randn(STATE, STATE))
        self.seen = nn.Parameter(torch.randn(MEASURED, STATE))
        self.noise, self.error = nn.Parameter(0.3 * torch.eye(STATE)), nn.Parameter(torch.eye(MEASURED))
        self.read = nn.Linear(N, MEASURED)

    def forward(self, x: Tensor) -> Any:
        eye = torch.eye(STATE, dtype=x.dtype)
        state, P = x.new_zeros(len(x), STATE), eye.expand(len(x), STATE, STATE)
        likelihood, out = x.new_zeros(len(x)), []
        for t in range(x.shape[1]):
            state = state @ self.step.T
            P = self.step @ P @ self.step.T + self.noise @ self.noise.T
            S = self.seen @ P @ self.seen.T + self.error @ self.error.T
            gain = P @ self.seen.T @ torch.linalg.inv(S)
            error = self.read(x[:, t]) - state @ self.seen.T
            state = state + (gain @ error.unsqueeze(-1)).squeeze(-1)
            P = (eye - gain @ self.seen) @ P
            likelihood = likelihood - (error * torch.linalg.solve(S, error)).sum(-1) - torch.logdet(S)
            out.append(state)
        return torch.stack(out, 1), likelihood


@row("a covariance by a frozen matrix")
class Covariance(nn.Module):
    """A product with what needs no gradient is one of matrices of the batch, each of them the same."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.eye(STATE) + 0.1 * torch.randn(STATE, STATE), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        P, out = torch.eye(STATE, dtype=x.dtype).expand(len(x), STATE, STATE), []
        for t in range(x.shape[1]):
            P = torch.tanh(self.step @ P @ self.step.T) + x[:, t].diag_embed()
            out.append(P)
        return torch.stack(out, 1)
