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
