"""What is changed in place keeps its place, and stays within one stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import partition
from tests.fxpasses.partition import zoo
from tests.fxpasses.partition.support import compare


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Counting(zoo.Sample):
    """A buffer is read, changed, read again, and changed at last where nobody reads the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.layers
        x = b(a(x))
        x = x - self.mean.clone()
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        x = d(c(x) * self.mean.clone())
        self.count += 1
        return f(e(x))


class ByFunction(zoo.Sample):
    """Statistics of a batch norm without its module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.a(x), self.mean, self.variance, training=True)
        return self.c(self.b(x) * self.variance.clone())


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("make", [Counting, ByFunction])
def test_a_buffer_is_changed_where_the_model_changes_it(make: type[zoo.Sample], stages: int) -> None:
    model = make()
    cut = partition(model, model.inputs(4)[0], stages)
    for B in (4, 3):
        compare(model, cut, *model.inputs(B)[0])


def test_all_that_reads_a_buffer_that_changes_is_in_the_stage_that_changes_it() -> None:
    cut = partition(Counting(), torch.randn(4, 6), 3)
    readers = [s for s, stage in enumerate(cut.stages) if "mean" in stage.names.values()]
    assert len(readers) == 1
    assert [stage.changes for stage in cut.stages if "mean" in stage.changes] == [cut.stages[readers[0]].changes]
    assert {name for stage in cut.stages for name in stage.changes} == {"mean", "count"}


def test_buffers_that_modules_by_hand_change_are_known() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Counting(), nn.BatchNorm1d(6))
    cut = partition(model, torch.randn(4, 6), list(model))
    assert [stage.changes for stage in cut.stages] == [(), ("1.mean", "1.count"), ()]
