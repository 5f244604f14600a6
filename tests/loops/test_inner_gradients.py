"""Loops whose steps take gradients: what autograd does for them are ops as all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import H, N, x


class Fast(nn.Module):
    """Fast weights learn in each step to map k on v."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(N, H, bias=False), nn.Linear(N, H)
        self.rate = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Any:
        W, out = x.new_zeros(len(x), H, H).requires_grad_(), []
        with torch.enable_grad():
            for t in range(x.shape[1]):
                k, v = self.k(x[:, t]).tanh(), self.v(x[:, t])
                W = W - self.rate * self.slope(W, k, v)
                out.append(self.read(W, k))
        return torch.stack(out, 1), W

    def read(self, W: Tensor, k: Tensor) -> Tensor:
        return torch.bmm(W, k.unsqueeze(-1)).squeeze(-1)

    def loss(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.read(W, k) - v).square().sum()

    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.autograd.grad(self.loss(W, k, v), W, create_graph=True)[0]


class OfFirstOrder(Fast):
    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = W.detach().requires_grad_()
        (found,) = torch.autograd.grad(self.loss(at, k, v), [at])
        return found


class OfALeaf(Fast):
    """A gradient flows back through what the slope is of, but for the weights."""

    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = W.detach().requires_grad_()
        (found,) = torch.autograd.grad(self.loss(at[:, :1], k, v[:, :1]), at, create_graph=True)
        return found * torch.tanh(W)


class ByFunc(Fast):
    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.func.grad(self.loss)(W, k, v)


class ForEachRow(Fast):
    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def loss(W: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.tanh(W @ k - v).square().sum()

        return torch.vmap(torch.func.grad(loss))(W, k, v)


class Forward(Fast):
    def slope(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.func.jvp(lambda at: torch.sin(at * v.unsqueeze(-1)), (W,), (torch.tanh(W),))[1]


@pytest.mark.parametrize("kind", [Fast, OfALeaf, OfFirstOrder, ByFunc, ForEachRow, Forward])
def test_gradients_in_a_loop(kind: Callable[[], Fast]) -> None:
    pair = Pair(kind())
    assert pair.strategies(x(20)) == ["sequential"]
    pair.both(lambda model: model.rate.data.mul_(0.5))
    assert pair.strategies(x(30)) == ["sequential"]
    given = x(20)
    with torch.no_grad():
        for plain, fast in [(pair.plain(given), pair.fast(given)) for _ in range(3)]:
            torch.testing.assert_close(fast, plain)
    pair.both(lambda model: model.k.requires_grad_(False))
    pair.call(x(20))


def test_gradients_after_a_loop() -> None:
    class Penalised(Fast):
        def forward(self, x: Tensor) -> Any:
            out, W = super().forward(x)
            (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            return out, slope, W

    assert "sequential" in Pair(Penalised()).strategies(x(20))  # the loop of autograd is PyTorch's


def test_functions_with_a_gradient_of_their_own() -> None:
    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Tensor) -> Tensor:
            ctx.save_for_backward(v)
            return (v > 0).to(v)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g / (1 + ctx.saved_tensors[0].abs()) ** 2

    class Spikes(Fast):
        def loss(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (Spike.apply(self.read(W, k)) - v).square().sum()

    pair = Pair(Spikes())
    assert pair.strategies(x(20)) == ["pytorch"]
    assert "grad: changes what autograd does" in bppsa.report(pair.fast).decisions[0].reason
