"""Loops with torch.autograd.Functions: surrogate gradients of spikes, straight-through estimators and such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops import own_functions
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, x
from tests.loops.own_functions import LEFT, USES, Seeding, calls, cubed


class Spiking(Cell):
    kind = nn.RNNCell

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.use, self.scale = use, nn.Parameter(torch.full((H,), 0.7))

    def forward(self, x: Tensor) -> Any:
        u, spike, out = self.start(x), self.start(x), []
        for t in range(x.shape[1]):
            u = 0.9 * u + self.cell(x[:, t], spike) - 0.3 * spike
            spike = self.use(self, u)
            out.append(spike)
        return torch.stack(out, 1), u


@pytest.mark.parametrize("use", USES)
def test_a_product_with_the_gradient_is_part_of_the_scan(use: str) -> None:
    torch.manual_seed(0)
    assert Pair(Spiking(USES[use])).strategies(x(16)) == ["sequential"]


@pytest.mark.parametrize("use", LEFT)
def test_any_other_gradient_is_pytorchs(use: str) -> None:
    torch.manual_seed(0)
    calls.clear()
    pair = Pair(Spiking(LEFT[use][0]))
    assert pair.strategies(x(16)) == ["pytorch"]
    assert LEFT[use][1] in pair.decisions()[0].reason
    assert len(calls) in (0, 2 * 3 * 16)  # of both models, in each call and step: no backward has run but PyTorch's


def test_a_seed_that_a_backward_sets_is_set_in_backwards_alone() -> None:
    torch.manual_seed(0)
    pair = Pair(Spiking(lambda cell, u: Seeding.apply(u)))
    given = x(16)
    for _ in range(2):
        states = []
        for model in (pair.plain, pair.fast):
            torch.manual_seed(9)
            model(given)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)


class Inverting(Cell):
    """An op under no_grad that gives nothing."""

    def forward(self, x: Tensor) -> Any:
        h, out, eye = self.start(x), [], torch.eye(H, dtype=x.dtype)
        for t in range(x.shape[1]):
            with torch.no_grad():
                turn = torch.linalg.inv(eye + 0.01 * h.unsqueeze(2) * h.unsqueeze(1))
            h = self.cell(x[:, t], (turn @ h.unsqueeze(2)).squeeze(2))
            out.append(h)
        return torch.stack(out, 1)


def test_checks_of_matrices_without_gradients() -> None:
    Pair(Inverting()).strategies(x(16))


def test_what_a_backward_reads_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Spiking(USES["spike"]))
    pair.strategies(x(16))
    monkeypatch.setattr(f"{own_functions.__name__}.SHARPNESS", 5.0)
    assert pair.strategies(x(16)) == ["sequential"]


def test_gradients_of_gradients() -> None:
    pair, found = Pair(Spiking(USES["spike"])), []
    given = x(16)
    pair.strategies(given)
    for model in (pair.plain, pair.fast):
        own = given.detach().requires_grad_()
        (first,) = torch.autograd.grad(model(own)[1].square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [own, model.cell.weight_hh]))
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


class Cubing(Cell):
    """An op with a backward of its own, beside the loop or in it."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        read = x if self.inside else cubed(x)
        for t in range(x.shape[1]):
            h = self.cell(cubed(read[:, t]) if self.inside else read[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("inside", [False, True])
def test_an_op_has_its_gradient_where_it_is_called_again(inside: bool) -> None:
    assert Pair(Cubing(inside)).strategies(x()) == ["sequential"]
