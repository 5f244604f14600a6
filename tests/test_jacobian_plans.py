"""Plans of Jacobians that are kept for the next call: each call sees what has changed, and no model is kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from tests.sparsity.samples import Random

r = Random(1)
X = r(2, 6)


def reference(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.stack([torch.func.jacrev(lambda row: model(row[None])[0])(row) for row in x])


def close(got: Tensor, model: Callable[[Tensor], Tensor], x: Tensor = X) -> None:
    dense = got if got.layout is torch.strided else got.to_dense()
    torch.testing.assert_close(dense, reference(model, x), rtol=1e-12, atol=1e-12)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def test_masks_made_for_a_call() -> None:
    """Their addresses come again, one after the other."""
    model, original = net(), net()
    for _ in range(24):
        mask = r.mask(8, 6)
        with torch.no_grad():
            model[0].weight.copy_(original[0].weight * mask)
        close(bppsa.jacobian(model, X, masks={"0.weight": mask}), model)
        del mask


@pytest.mark.parametrize("change", [lambda m: m.logical_not_(), lambda m: m.data.logical_not_()], ids=["seen", "data"])
def test_a_mask_that_changes(change: Callable[[Tensor], Any]) -> None:
    model, mask = nn.Linear(6, 6).double(), r.mask(6, 6)
    weight = model.weight.detach().clone()
    for _ in range(3):
        with torch.no_grad():
            model.weight.copy_(weight * mask)
        close(bppsa.jacobian(model, X, masks={"weight": mask}), model)
        change(mask)


def test_a_mask_of_prune_that_changes_without_notice() -> None:
    model = net()
    prune.random_unstructured(model[0], "weight", 0.5)
    plan = bppsa.jacobian_plan(model, X)
    for _ in range(3):
        close(bppsa.jacobian(model, X), model)
        close(plan(X), model)
        model[0].weight_mask.data.copy_(r.mask(8, 6))


class Picks(nn.Module):
    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x[:, self.order])


class Ranks(Picks):
    """By numbers computed from a buffer of reals."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x[:, self.order.argsort()])


@pytest.mark.parametrize("make", [lambda: Picks(torch.randperm(6)), lambda: Ranks(r(6))], ids=["indices", "computed"])
def test_what_a_model_picks_may_change(make: Callable[[], Picks]) -> None:
    """Here the values of a tensor, not only its shape, decide which entries of J there are."""
    torch.manual_seed(0)
    model = make()
    plan = bppsa.jacobian_plan(model, X)
    for _ in range(3):
        close(bppsa.jacobian(model, X), model)
        close(plan(X), model)
        model.order.copy_(model.order[torch.randperm(6)])


def test_what_the_input_picks() -> None:
    def model(x: Tensor) -> Tensor:
        return 2 * x[:, x.detach()[0].argsort()]

    plan = bppsa.jacobian_plan(model, r(1, 6))
    for _ in range(3):
        x = r(1, 6)
        close(plan(x).to_dense()[None], model, x)
        close(bppsa.jacobian(model, x).to_dense()[None], model, x)


@dataclass
class Scaled:
    """Equal to another of the same factor, and so without a hash."""

    factor: float

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factor


class Slotted:
    """Takes no weak references."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return 3 * x


@pytest.mark.parametrize("model", [Scaled(2.0), Slotted(), torch.tanh], ids=lambda model: type(model).__name__)
def test_any_callable_is_a_model(model: Callable[[Tensor], Tensor]) -> None:
    for _ in range(2):
        close(bppsa.jacobian(model, X), model)


class Holder:
    def __init__(self) -> None:
        self.weight = r(6, 6)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight)

    method = __call__


@pytest.mark.parametrize("of", [lambda held: held, lambda held: held.method], ids=["object", "method"])
def test_plans_keep_no_model_alive(of: Callable[[Holder], Any]) -> None:
    held = Holder()
    bppsa.jacobian(of(held), X)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None
