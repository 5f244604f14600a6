"""Micro-batches that count for nothing, with numbers in them that are not finite: loss and gradients are those of the
whole batch, so that neither a NaN nor an infinite gradient is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.runtime.worker.over_nothing import OverNothing
from bppsa.schedule import ddp, gpipe, zero_bubble

pytestmark = pytest.mark.usefixtures("in_float64")
NOTHING = -100


def of_rows(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output, labels.clamp(min=0), reduction="none")


def multiplied(output: Tensor, labels: Tensor) -> Tensor:
    mask = (labels >= 0).to(output.dtype)
    return (of_rows(output, labels) * mask).sum() / mask.sum()


def by_reciprocal(output: Tensor, labels: Tensor) -> Tensor:
    mask = labels >= 0
    return torch.where(mask, of_rows(output, labels), 0.0).sum() * mask.sum().reciprocal()


def of_selected(output: Tensor, labels: Tensor) -> Tensor:
    return of_rows(output[labels >= 0], labels[labels >= 0]).mean()


def in_python(output: Tensor, labels: Tensor) -> Tensor:
    return multiplied(output, labels) if labels.max().item() < 9 else output.sum()


def counted(labels: Tensor) -> Tensor:
    return (labels >= 0).sum()


class WithLoss(nn.Module):
    def __init__(self, net: nn.Module, loss_fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.net, self.loss_fn = net, loss_fn

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss_fn(self.net(x), labels)}


CASES: dict[str, tuple[Any, ...]] = {  # the loss, whether the model returns it, options
    "classes": (F.cross_entropy, False, {"schedule": gpipe()}),
    "multiplied": (multiplied, False, {"schedule": zero_bubble()}),
    "in Python": (in_python, False, {"schedule": gpipe(), "loss_weight": counted}),
    "own classes": (nn.CrossEntropyLoss(), True, {"schedule": ddp()}),
    "own, by a reciprocal": (by_reciprocal, True, {"schedule": gpipe(), "recompute": "full"}),
    "own, of selected rows": (of_selected, True, {"schedule": gpipe(), "recompute": "selective"}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_in_rows_that_count_for_nothing_is_not_lost(name: str) -> None:
    loss_fn, own, options = CASES[name]
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5))
    model: nn.Module = WithLoss(net, loss_fn) if own else net
    others = {} if own else {"loss_fn": loss_fn}
    compiled = compile(copy.deepcopy(model), stages=2, microbatches=4, **options, **others)
    x, labels = torch.randn(8, 3), torch.randint(5, (8,))
    labels[2:4] = labels[6] = NOTHING
    for value in (0.0, float("nan"), float("inf"), -float("inf"), 1.0):
        given = x.clone()
        given[2, 0] = value
        model.zero_grad()
        compiled.zero_grad()
        expected = model(given, labels)["loss"] if own else loss_fn(model(given), labels)
        expected.backward()
        found = compiled.step(given, labels)
        torch.testing.assert_close(found.plain, expected.detach(), equal_nan=True)
        for p, q in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, equal_nan=True)


class ByRows(nn.Module):
    """Divides each row by a number of its own, and the loss by a count."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        mask = labels >= 0
        divided = (self.net(x) / x.sum(1, keepdim=True)).sum(1)
        return torch.where(mask, divided, 0.0).sum() / mask.sum()


def test_a_division_of_a_row_by_zero_is_none_by_a_count() -> None:
    """A micro-batch has one row."""
    model, x, labels = ByRows(), torch.randn(4, 3), torch.randint(5, (4,))
    labels[2] = NOTHING
    compiled = compile(copy.deepcopy(model), stages=2, microbatches=4, schedule=gpipe())
    for value in (0.0, 1.0):
        x[2] = value
        for each in (model, compiled):
            each.zero_grad()
        expected = model(x, labels)
        expected.backward()
        torch.testing.assert_close(compiled.step(x, labels).plain, expected.detach())
        for p, q in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, equal_nan=True)
        assert model.net[0].bias.grad.isfinite().all() == bool(value)


def penalised(output: Tensor, labels: Tensor) -> Tensor:
    loss = multiplied(output, labels)
    (grad,) = torch.autograd.grad(loss, output, create_graph=True)
    return loss + grad.square().sum()


def test_gradients_within_a_loss_are_of_what_stands_undivided() -> None:
    output, labels = torch.randn(2, 5, requires_grad=True), torch.full((2,), NOTHING)
    with OverNothing() as over:
        loss = over.beside(penalised(output, labels))
    assert loss == 0


def divide(a: Tensor, b: Tensor) -> Tensor:
    return a * torch.where(b == 0, 0.5, b)


class Calls(nn.Module):
    """Counts its calls, which cannot be traced, and gives the loss as a metric too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, output: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        mask = (labels >= 0).to(output.dtype)
        total = torch.zeros(())
        total += divide((of_rows(F.dropout(output), labels) * mask).sum(), 1 / mask.sum())
        return total, {"loss": total.detach().clone()}


def test_a_loss_runs_once_for_a_micro_batch_that_counts_for_nothing() -> None:
    loss_fn, net = Calls(), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
    compiled = compile(net, stages=2, microbatches=4, schedule=gpipe(), loss_fn=loss_fn, loss_weight=counted)
    x, labels = torch.randn(8, 3), torch.randint(5, (8,))
    labels[2:4] = NOTHING
    found = compiled.step(x, labels)
    assert loss_fn.calls == 4
    assert found.isfinite()
    assert found.metrics["loss"].isnan().tolist() == [False, True, False, False]
    assert all(p.grad.isfinite().all() for p in compiled.parameters())


@pytest.mark.parametrize(
    "quotient",
    [
        *(lambda a, n: a / n, lambda a, n: a * (1 / n), lambda a, n: a * n.pow(-1), lambda a, n: a * n**-1),
        *(lambda a, n: torch.div(a, other=n), lambda a, n: a * n.reciprocal(), lambda a, n: torch.ops.aten.div(a, n)),
    ],
)
def test_quotients_of_all_kinds_stay_undivided_beside_what_they_give(quotient: Callable[..., Tensor]) -> None:
    a, n = torch.tensor(3.0, requires_grad=True), torch.zeros(())
    with OverNothing() as over:
        made, by_name = quotient(a, n) * 2, divide(a, n)
    assert not made.isfinite()
    assert over.beside(made) == 6
    assert over.beside(by_name) is by_name
