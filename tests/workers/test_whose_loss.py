"""Losses that look like PyTorch's own, and compute something else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.errors import ArgumentError, WorkerError
from bppsa.schedule import gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")

ROWS, CLASSES = 6, 5


class Divided(nn.CrossEntropyLoss):
    """A sum, divided by hand."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) / len(target)


class OfItsOwn(nn.Module):
    reduction = "sum"  # of what it calls

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction=self.reduction) / len(target)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("loss_fn", [Divided(), OfItsOwn()], ids=["derived", "of its own"])
def test_what_reduction_means_is_read_from_pytorchs_classes_alone(loss_fn: Callable[..., Tensor]) -> None:
    plain = model()
    scheduled = compile(copy.deepcopy(plain), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss_fn)
    x, target = torch.randn(ROWS, 4), torch.randint(CLASSES, (ROWS,))
    expected = loss_fn(plain(x), target)
    expected.backward()
    support.close(scheduled.step(x, target), expected.detach())
    support.same(support.gradients(scheduled), support.gradients(plain))


def test_an_infinite_half_is_no_mean() -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="sum") / (
            output.shape[0] - 1 if bool(output[0, 0] > -9) else 1
        )

    scheduled = compile(model(), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss_fn)
    with pytest.raises((ArgumentError, WorkerError), match="no mean over rows"):
        scheduled.step(torch.randn(ROWS, 4), torch.randint(CLASSES, (ROWS,)))
