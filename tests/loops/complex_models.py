"""Loops over a complex state: state-space models, and an orthogonal recurrence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.loops.cells import H, N, row, x

C, R = torch.complex128, torch.float64


def parameter(*shape: int, dtype: torch.dtype = C) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=dtype) * 0.4)


@row("LRU")
class Lru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nu, self.theta, self.skip = (parameter(*shape, dtype=R) for shape in ((H,), (H,), (2, N)))
        self.enter, self.leave = parameter(H, N), parameter(2, H)

    def forward(self, x: Tensor) -> Any:
        keep = torch.exp(torch.complex(-self.nu.exp(), self.theta))
        gain = torch.sqrt(1 - keep.abs() ** 2)
        h, out = torch.zeros(x.shape[0], H, dtype=C), []
        for x_t in x.unbind(1):
            h = keep * h + gain * (x_t.to(C) @ self.enter.T)
            out.append((h @ self.leave.T).real + x_t @ self.skip.T)
        return torch.stack(out, 1)


@row("LRU, all inputs at once")
class Projected(Lru):
    def forward(self, x: Tensor) -> Any:
        keep = torch.polar(torch.sigmoid(self.nu), self.theta)
        given = torch.einsum("hi,bti->bth", self.enter, x + 0j)
        h, out = torch.zeros_like(given[:, 0]), []
        for t in range(x.shape[1]):
            h = h * keep + given[:, t]
            out.append(h)
        states = torch.stack(out, dim=1)
        return (states @ self.leave.mT).real + F.linear(x, self.skip), states, h


@row("S4D")
class S4d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.dt, self.skip = (
            parameter(N, H),
            parameter(N, H),
            parameter(N, dtype=R),
            parameter(N, dtype=R),
        )

    def forward(self, x: Tensor) -> Any:
        dt = self.dt.exp().unsqueeze(-1)
        keep = torch.exp(dt * torch.complex(-self.a.real.exp(), self.a.imag))
        h, out = torch.zeros(x.shape[0], N, H, dtype=C), []
        for t in range(x.shape[1]):
            h = keep * h + dt * x[:, t, :, None]
            out.append(2 * (self.c * h).sum(-1).real + self.skip * x[:, t])
        return torch.stack(out, 1)


@row("S4D, pairs of reals", lambda: x(dim=0))
class PairsOfReals(S4d):
    """Parameters and state as a checkpoint holds them, and outputs written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = (nn.Parameter(torch.randn(N, H, 2, dtype=R)) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        a, c = torch.view_as_complex(self.a), torch.view_as_complex(self.c)
        keep = torch.exp(torch.complex(-a.real.exp(), a.imag) * self.dt.exp()[:, None])
        state = x.new_zeros(x.shape[1], N, H, 2)
        y = torch.empty_like(x)
        for t in range(len(x)):
            h = torch.view_as_complex(state) * keep + (keep - 1) / a * x[t].unsqueeze(-1)
            state = torch.view_as_real(h)
            y[t] = 2 * torch.einsum("bnh,nh->bn", h, c).real
        return y, state


@row("unitary", lambda: torch.randn(3, 14, H, dtype=C, requires_grad=True))
class Unitary(nn.Module):
    """Its conjugates are views that have other signs than their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.start, self.bias = parameter(H, H), parameter(H), parameter(H, dtype=R)

    def forward(self, x: Tensor) -> Any:
        h, out, parts = self.start.expand(x.shape[0], -1), [], []
        turned = x.conj()
        for t in range(x.shape[1]):
            new = h @ self.w.mH + turned[:, t]
            h = torch.relu(new.abs() + self.bias) * torch.sgn(new)
            out.append(h.conj())
            parts.append(turned[:, t].imag * h.conj().imag)
        return torch.stack(out, 1), torch.stack(parts, 1), h.conj(), turned.imag


@row("unitary, without a batch", lambda: torch.randn(14, H, dtype=C, requires_grad=True))
class Alone(Unitary):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start, []
        for x_t in x:
            h = self.w.mH @ h + x_t.conj() * self.bias
            h = h / (1 + h.abs())
            out.append(h.conj().imag)
        return torch.stack(out), h
