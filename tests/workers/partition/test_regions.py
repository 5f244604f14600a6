"""Regions without gradients, with another dtype or to be computed again keep what they are; buffers change as the
model changes them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bppsa.schedule import fsdp, lpp, zero_bubble
from tests.breadth import diagonal
from tests.workers import support
from tests.workers.partition.support import Model, batch, check, check_or_refused, compiled_for, place, serial

Forward = Callable[[Model, Tensor], Tensor]


def without_gradients(self: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = self.second(x)
    return x * scale


@torch.no_grad()
def teacher(self: Model, x: Tensor) -> Tensor:
    return self.third(x)


def decorated(self: Model, x: Tensor) -> Tensor:
    return x * teacher(self, x)


def with_gradients_within(self: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = self.second(x)
        with torch.enable_grad():
            shift = self.third(x)
    return x * scale + shift


def by_a_flag(self: Model, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(not self.training):
        scale = self.second(x)
    return x * scale


def detached(self: Model, x: Tensor) -> Tensor:
    return x * self.second(x).detach() + self.third(x.detach())


def recomputed(self: Model, x: Tensor) -> Tensor:
    return checkpoint(lambda y: torch.tanh(self.second(y)), x, use_reentrant=False)


def recomputed_in_the_old_way(self: Model, x: Tensor) -> Tensor:
    return checkpoint(lambda y: torch.tanh(self.second(y)), x, use_reentrant=True)


def recomputed_within(self: Model, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return checkpoint(self.second, y, use_reentrant=False).sin()

    return checkpoint(lambda y, z: inner(y) * z, x, x.exp(), use_reentrant=False)


def frozen_within(self: Model, x: Tensor) -> Tensor:
    y = x.detach().clone().requires_grad_()
    return x * torch.tanh(self.second(y))


REGIONS: tuple[Forward, ...] = (
    *(without_gradients, decorated, with_gradients_within, by_a_flag, detached),
    *(recomputed, recomputed_in_the_old_way, frozen_within),
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("forward", "schedule"), diagonal(REGIONS, [zero_bubble(), lpp(G=2), fsdp()]))
def test_regions_are_kept(forward: Forward, schedule: object) -> None:
    check(Model(forward), schedule=schedule)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_checkpoints_within_checkpoints() -> None:
    """Export takes the inner one's gradients away, which is seen where the stages are compared with the model."""
    check_or_refused(Model(recomputed_within), "its stages give something else than the model")


def test_another_dtype_within() -> None:
    """In float32, the only dtype that autocast replaces; products of bfloat16 tell where it was lost."""

    def cast(self: Model, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(x)
            with torch.autocast("cpu", enabled=False):
                z = self.third(y.float())
        return y.float() * z

    torch.set_default_dtype(torch.float32)
    model, given = Model(cast), batch()
    compiled = compiled_for(copy.deepcopy(model), given)
    support.close(compiled.step(*given.args, given.target), serial(model, given), 1e-5)
    support.same(support.gradients(compiled), support.gradients(model), 1e-4)


def counted(self: Model, x: Tensor) -> Tensor:
    self.mean += 1
    return x + self.mean


def averaged(self: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - self.mean


def copied(self: Model, x: Tensor) -> Tensor:
    self.mean.copy_(x.detach().mean(0))
    return x - self.mean


def through_data(self: Model, x: Tensor) -> Tensor:
    self.mean.data = self.mean.data + x.detach().mean(0)
    return x - self.mean


def read_before_and_after(self: Model, x: Tensor) -> Tensor:
    before = x + self.mean
    self.mean.add_(1)
    return before + self.mean.sin()


def kept_for_the_backward(self: Model, x: Tensor) -> Tensor:
    self.mean.add_(1)
    return x * self.mean


@pytest.mark.parametrize("forward", [counted, averaged, copied, read_before_and_after], ids=lambda f: f.__name__)
def test_buffers_change_as_in_the_model(forward: Forward) -> None:
    check(Model(forward))


def test_a_buffer_that_the_backward_of_an_earlier_micro_batch_reads() -> None:
    """PyTorch's own error, as for two calls before the first backward."""
    check_or_refused(Model(kept_for_the_backward), r"modified by an inplace operation")


def test_a_buffer_that_is_changed_behind_autograd() -> None:
    check_or_refused(Model(through_data), place(through_data, "self.mean.data = "))


class Chosen(nn.Module):
    """Another graph for small batches, as micro-batches are."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.first, self.second, self.most = nn.Linear(4, 4), nn.Linear(4, 4), most

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if x.shape[0] > self.most:
            y = torch.tanh(y)
        return self.second(y)


@pytest.mark.parametrize("most", [1, 4])
def test_a_branch_on_how_many_rows_there_are(most: int) -> None:
    """The example has six rows, and a micro-batch three."""
    check_or_refused(Chosen(most), r"test_regions\.py:\d+.*if x\.shape\[0\] > self\.most")
