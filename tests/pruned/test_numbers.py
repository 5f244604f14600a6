"""Numbers that a forward brings, keeps or computes, and tensors that look like masks: values and gradients are
PyTorch's in each of several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

import bppsa
from bppsa.frontend.pruned.regions import graph
from tests.pruned.support import error, kernels


class Net(nn.Module):
    """A pruned layer, and a weight of the user's own with something like a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.weight, self.stride = nn.Parameter(torch.randn(6, 8, 3, 3)), 1
        self.register_buffer("mask", (torch.rand(6, 8, 3, 3) < 0.3).float())
        self.register_buffer("scores", 3 * torch.rand(6, 8, 3, 3) * self.mask)

    def change(self, call: int) -> None:
        pass


class WhereScores(Net):
    """All that is not zero is kept, with the weight's own number."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), torch.where(self.scores.to(torch.bool), self.weight, 0.0))


class TimesTruncated(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.scores.to(torch.int64))


class TimesRounded(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.scores.to(torch.bool))


class Promotes(Net):
    """A float32 weight and a float64 mask make a float64 product."""

    def double(self) -> Promotes:
        super().double().weight = nn.Parameter(self.weight.float())
        return self

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.mask)


class TimesNumber(Net):
    def change(self, call: int) -> None:
        self.stride = 1 + call % 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.mask * self.stride)


class Strides(TimesNumber):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.mask, stride=self.stride, padding=self.stride)


class MomentumOfSizes(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return F.batch_norm(y, self.norm.running_mean, self.norm.running_var, training=True, momentum=1 / y.shape[0])


class ReadsCounter(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        return y * self.norm.num_batches_tracked.to(y.dtype)


class Renamed(Net):
    """One attribute in the place of another: as many as before."""

    def __init__(self) -> None:
        super().__init__()
        self.first = 1.0

    def change(self, call: int) -> None:
        if call == 2:
            del self.first
            self.second = 3.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.__dict__.get("second", 1.0)


CASES = (WhereScores, TimesTruncated, TimesRounded, Promotes, TimesNumber)
CASES += (Strides, MomentumOfSizes, ReadsCounter, Renamed)


def pair(case: type[Net]) -> tuple[Net, Net]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        model = case().double()
        prune.l1_unstructured(model.layer, "weight", 0.9)
        made.append(model)
    return made[0], bppsa.compile(made[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_numbers_are_those_of_pytorch(case: type[Net]) -> None:
    plain, fast = pair(case)
    for call, samples in enumerate((4, 5, 6, 7)):
        plain.change(call), fast.change(call)
        x = torch.randn(samples, 4, 6, 6).double()
        results = []
        for model in (plain, fast):
            model.zero_grad()
            y = model(x)
            (y - 1).square().sum().backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([y, *grads, *model.buffers()])
        for expected, got in zip(*results, strict=True):
            assert (expected.shape, expected.dtype) == (got.shape, got.dtype)
            assert error(expected.double(), got.double()) < 1e-6  # wrong numbers are off by tenths
    assert "sparse" in kernels(fast)


class Plain(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.layer(x), self.weight * self.mask)


def test_a_mask_that_takes_a_gradient_has_one() -> None:
    plain, fast = pair(Plain)
    for model in (plain, fast):
        model.mask.requires_grad_()
        model(torch.ones(4, 4, 6, 6).double()).sum().backward()
    assert error(plain.mask.grad, fast.mask.grad) < 1e-11


def test_a_counter_of_calls_needs_no_plan_for_each_number() -> None:
    class Counts(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x)

    plain, fast = pair(Counts)
    x = torch.randn(4, 4, 6, 6).double()
    for call in range(graph.MOST_PLANS + 6):
        assert error(plain(x), fast(x)) < 1e-11
        assert fast.calls == call + 1
        assert kernels(fast) == ["sparse"]


COUNTS: dict[str, Callable[[Tensor], object]] = {
    "by one": lambda n: n.add_(1),
    "by three": lambda n: n.add_(1, alpha=3),
    "by two numbers": lambda n: n.add_(other=1, alpha=2),
    "by a bool": lambda n: n.add_(True),
    "down": lambda n: n.sub_(1),
    "into itself": lambda n: torch.add(n, 1, out=n),
    "through a view": lambda n: n.view(()).add_(1),
    "twice": lambda n: (n.add_(1), n.add_(1)),
    "all at once": lambda n: torch._foreach_add_([n, n], 1),
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_counter_counts_as_its_user_says(count: Callable[[Tensor], object]) -> None:
    class Counted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            count(self.calls)
            return F.relu(y)

    plain, fast = pair(Counted)
    for _ in range(3):
        x = torch.randn(4, 4, 6, 6).double()
        assert error(plain(x), fast(x)) < 1e-11
        assert plain.calls == fast.calls
    assert kernels(fast) == ["sparse"]


class ReadsViewOfCounter(Net):
    """The counter is a part of what is read after it has been raised."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.arange(8))
        self.count = self.counts[0]

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.count.add_(1)
        return F.relu(y) * self.counts.to(y.dtype).view(-1, 1, 1)


class ReadsViewOfStatistics(Net):
    """What is made before the region shows what a batch norm in it has changed."""

    def forward(self, x: Tensor) -> Tensor:
        mean = self.norm.running_mean.view(-1, 1, 1).expand(x.shape[0], 8, 6, 6)
        return self.norm(self.layer(x)) + mean


class ReadsViewOfStatisticsTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.norm.running_mean.view(-1, 1, 1).expand(x.shape[0], 8, 6, 6)
        return self.norm(self.layer(x) + mean) + mean


ALIASES = (ReadsViewOfCounter, ReadsViewOfStatistics, ReadsViewOfStatisticsTwice)


@pytest.mark.parametrize("case", ALIASES, ids=lambda case: case.__name__)
def test_what_a_region_changes_is_read_as_it_is_then(case: type[Net]) -> None:
    plain, fast = pair(case)
    for samples in (4, 4, 7):
        x = torch.randn(samples, 4, 6, 6).double()
        assert error(plain(x), fast(x)) < 1e-11
        for expected, got in zip(plain.buffers(), fast.buffers(), strict=True):
            assert error(expected.double(), got.double()) < 1e-11


class BringsNumber(Net):
    """`self.calls` is another in each call."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Conv2d(8, 8, 1)

    def number(self) -> Any:
        self.calls += 1
        return self.calls

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.layer(x)) * self.number())


class BringsPower(BringsNumber):
    def number(self) -> Any:
        return 1 / (super().number() + 2)


class BringsShift(BringsNumber):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.roll(self.layer(x), self.number(), 2)[: x.shape[0]])


class BringsRows(BringsNumber):
    """As many rows as the number says."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.layer(x))[: 1 + self.number() % 11])


@pytest.mark.parametrize("case", [BringsNumber, BringsPower, BringsShift, BringsRows], ids=lambda case: case.__name__)
def test_a_number_that_grows_needs_no_plan_for_each(case: type[BringsNumber]) -> None:
    plain, fast = pair(case)
    for call in range(graph.MOST_PLANS + 6):
        x = torch.randn(12 + call % 2, 4, 6, 6).double()
        assert error(plain(x), fast(x)) < 1e-11
    assert fast.calls == plain.calls
    decided = {d.path: d for d in fast.report.decisions}
    assert decided["layer"].strategy == "sparse"
    assert "test_numbers.py" in decided["layer"].reason
    assert "a number that each call brings" in decided["layer"].reason
