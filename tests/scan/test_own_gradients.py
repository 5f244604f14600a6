"""Cells with torch.autograd.Functions: what multiplies the gradient is part of the scan, any other is PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import bppsa
from bppsa.frontend.call_log import collecting
from bppsa.runtime.recurrent.reference import loop
from tests.loops.own_functions import LEFT, USES, Seeding, Spike, calls, cubed
from tests.scan.support import check, leaves, results, same
from tests.scan.zoo import H, T, example, h, x

WEIGHT = torch.linspace(-1, 1, H * H, dtype=torch.float64).view(H, H).requires_grad_()


class Neurons:
    """Neurons that leak, and that spike by `use`."""

    scale = torch.full((H,), 0.7, dtype=torch.float64)

    def __init__(self, use: Any) -> None:
        self.use = use

    def __call__(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        u = 0.9 * u + x @ WEIGHT
        spike = self.use(self, u)
        return u - 0.3 * spike, spike


@pytest.mark.parametrize("use", USES)
def test_a_product_with_the_gradient_is_part_of_the_scan(use: str) -> None:
    torch.manual_seed(0)
    assert check(example(Neurons(USES[use]), h(), x(H)), tolerance=1e-12).strategy == "sequential"


@pytest.mark.parametrize("use", [use for use in LEFT if use != "noisy"])
def test_any_other_gradient_is_pytorchs(use: str) -> None:
    torch.manual_seed(0)
    calls.clear()
    cell = Neurons(LEFT[use][0])
    decision = check(example(cell, h(), x(H)), tolerance=1e-12)
    assert decision.strategy == "pytorch"
    assert "gradient" in decision.reason or "in place" in decision.reason
    assert len(calls) in (0, 2 * T)  # of both scans: no backward has run but PyTorch's


def test_a_seed_that_a_backward_sets_is_set_in_backwards_alone() -> None:
    carry, xs = h(), x(H)
    before = torch.get_rng_state()
    with collecting() as taken:
        bppsa.scan(Neurons(lambda cell, u: Seeding.apply(u)), carry, xs)
    assert torch.equal(before, torch.get_rng_state())
    assert "draws random numbers" in taken[0].reason


def test_a_gradient_of_its_own_is_recorded_where_one_is_asked_for() -> None:
    """What was recorded without it is not used for training afterwards."""
    cell, carry, xs = Neurons(USES["spike"]), h(), x(H)
    with collecting() as taken, torch.no_grad():
        bppsa.scan(cell, carry, xs)
    assert taken[0].strategy == "sequential"
    assert check(example(cell, carry, xs), tolerance=1e-12).strategy == "sequential"


def test_a_second_derivative_goes_through_the_slope() -> None:
    """What a backward takes from autograd again is the tensor that it was, with its gradient."""
    cell, carry, xs = Neurons(USES["skewed"]), h(), x(H)
    found = []
    for scan in (bppsa.scan, loop):
        loss = sum((value**2).sum() for value in leaves(scan(cell, carry, xs)))
        first = torch.autograd.grad(loss, [xs, WEIGHT], create_graph=True)
        found.append(torch.autograd.grad(sum((g**2).sum() for g in first), [xs, WEIGHT]))
    same(*found)


class Sharp(Spike):
    sharpness = 1.0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return g * torch.exp(-Sharp.sharpness * u.abs())


def test_what_a_backward_reads_may_change_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, carry, xs = Neurons(lambda cell, u: Sharp.apply(u)), h(), x(H)
    for sharpness in (1.0, 3.0):
        monkeypatch.setattr(Sharp, "sharpness", sharpness)
        assert check(example(cell, carry, xs), tolerance=1e-12).strategy != "failed"


def test_what_a_backward_reads_is_as_it_was_when_the_forward_ran() -> None:
    """Where it is changed in place after it PyTorch raises; the numbers are those of a change that is none in place."""

    def changed(u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        u = u * 0.9 + x
        spike = Spike.apply(u)
        return u.sub_(spike), spike

    def apart(u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        u = u * 0.9 + x
        spike = Spike.apply(u)
        return u - spike, spike

    carry, xs = h(), x(H)
    (got, gradients), (expected, wanted) = (results(bppsa.scan, example(cell, carry, xs)) for cell in (changed, apart))
    same(got, expected, 1e-12)
    same(gradients, wanted, 1e-12)


class Short(Spike):
    """Gives one gradient for two arguments."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, by: float) -> Tensor:
        return u * by

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Number(Spike):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 3.0


@pytest.mark.parametrize("use", [lambda cell, u: Short.apply(u, 0.5), lambda cell, u: Number.apply(u)])
def test_an_error_of_a_backward_is_raised_where_pytorch_raises_it(use: Any) -> None:
    loss = bppsa.scan(Neurons(use), h(), x(H))[0].sum()
    with pytest.raises(RuntimeError, match=r"incorrect number of gradients|expected Variable or None"):
        loss.backward()


BY_AN_OP: dict[str, Any] = {
    "x": lambda h, x: torch.tanh(h + cubed(x)),
    "a product of x": lambda h, x: torch.tanh(h + cubed(x @ WEIGHT)),
    "a parameter": lambda h, x: torch.tanh(h @ cubed(WEIGHT) + x),
    "the carry": lambda h, x: torch.tanh(cubed(h) + x),
}


@pytest.mark.parametrize("step", BY_AN_OP.values(), ids=BY_AN_OP)
def test_an_op_with_a_backward_of_its_own_is_pytorchs(step: Any) -> None:
    """Its forward runs without gradients, as a Function's does: they would be lost."""
    decision = check(example(lambda h, x: (step(h, x), h * 2), h(), x(H), WEIGHT), tolerance=1e-12)
    assert decision.strategy == "pytorch"
    assert "gradient of its own" in decision.reason


def test_a_jacobian_through_an_op_with_a_backward_of_its_own() -> None:
    given = x(H)[0].detach()
    found = bppsa.jacobian(cubed, given).to_dense()
    same([found.reshape(len(given), H, -1).sum(-1)], [3 * given**2])
