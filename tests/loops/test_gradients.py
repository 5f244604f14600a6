"""Gradients of some of what a loop returns: where PyTorch gives none, there is none, rather than zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.beside import Pair, assert_alike
from tests.loops.cells import B, Cell, H, N, x


class Two(Cell):
    """Two states in one loop; the second one may read the first."""

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        self.second = nn.GRUCell(H if stacked else N, H)
        self.stacked = stacked

    def forward(self, x: Tensor, h: Tensor, g: Tensor) -> Any:
        hs, gs = [], []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            g = self.second(h if self.stacked else x[:, t], g)
            hs.append(h)
            gs.append(self.head(g))
        return torch.stack(hs, 1), torch.stack(gs, 1), h, g


class Begins(Cell):
    """The state it begins with requires a gradient that nobody reads, as in norse; returned, somebody may."""

    def __init__(self, returned: bool) -> None:
        super().__init__()
        self.returned = returned
        self.register_buffer("rest", torch.full((H,), 0.1))

    def forward(self, x: Tensor) -> Any:
        state, out = None, []
        for t in range(x.shape[1]):
            if state is None:
                begun = self.start(x)
                begun.requires_grad = True
                state = begun, self.rest.detach().requires_grad_()
            h = self.cell(x[:, t], state[0] - 0.1 * state[1])
            state = h, 0.9 * state[1] + 0.1 * h
            out.append(h)
        made = torch.stack(out, 1)
        return (made, begun) if self.returned else made


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_that_begins_within_the_call(returned: bool, frozen: bool) -> None:
    model = Begins(returned).requires_grad_(not frozen)
    pair = Pair(model)
    for seed in range(4):
        given = x().detach()
        pair.call(given, seed=seed)
        ours, theirs = (pair.fast(given), pair.plain(given))
        for one, other in zip(ours, theirs, strict=True) if returned else [(ours, theirs)]:
            assert (one.requires_grad, one.is_leaf) == (other.requires_grad, other.is_leaf)
    if not frozen:
        assert [d.strategy for d in pair.decisions()] == ["pytorch" if returned else "sequential"]


def twice(loss: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    firsts = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    total = sum(first.square().sum() for first in firsts if first is not None)
    assert isinstance(total, Tensor)
    return [*firsts, *torch.autograd.grad(total, leaves, allow_unused=True)]


def once(loss: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


@pytest.mark.parametrize("gradients", [once, twice])
@pytest.mark.parametrize("stacked", [False, True])
def test_of_one_output(stacked: bool, gradients: Callable[[Tensor, list[Tensor]], list[Tensor | None]]) -> None:
    def start() -> Tensor:
        return torch.randn(B, H, dtype=torch.float64, requires_grad=True)

    pair = Pair(Two(stacked))
    given = x(), start(), start()
    assert pair.strategies(*given) == ["sequential"]
    for output in range(4):
        ran = []
        for model in (pair.plain, pair.fast):
            leaves = [*given, *model.parameters()]
            ran.append(gradients(model(*given)[output].square().sum(), leaves))
        for expected, found in zip(*ran, strict=True):
            assert_alike(expected, found)
