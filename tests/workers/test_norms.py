"""Batch norms whose running statistics a forward reads, or changes in its own way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bppsa
from bppsa.errors import BppsaError, PartitionError

B, N = 12, 5


class Follows(nn.BatchNorm1d):
    """As timm's norms with an activation do."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        own = (self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps)
        return torch.relu(functional.batch_norm(x, *own))  # type: ignore[arg-type]


class Reads(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.running_mean


class OwnMomentum(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.running_mean, self.running_var, training=self.training, momentum=0.5)


class Net(nn.Module):
    def __init__(self, kind: Any = nn.BatchNorm1d) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(N, N), kind(N), nn.Linear(N, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x)))


class ReadBehind(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        return self.b(h * self.norm.running_var)


class ReadInFunction(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        return self.b(functional.batch_norm(h, self.norm.running_mean, self.norm.running_var))


def compiled(model: nn.Module) -> Any:
    schedule = bppsa.schedule.gpipe()
    return bppsa.compile(model, schedule=schedule, stages=2, microbatches=3, loss_fn=functional.mse_loss)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(B, N, dtype=torch.float64), torch.randn(B, 4, dtype=torch.float64)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, Follows])
def test_norms_that_leave_statistics_to_pytorch(kind: Any) -> None:
    plain = Net(kind).double()
    fast = compiled(copy.deepcopy(plain))
    for _ in range(3):
        x, y = batch()
        for rows, target in zip(x.chunk(3), y.chunk(3), strict=True):
            (functional.mse_loss(plain(rows), target) / 3).backward()
        fast.step(x, y)
    for (name, expected), found in zip(plain.state_dict().items(), fast.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, msg=name)
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [Reads, OwnMomentum])
def test_norms_with_statistics_of_their_own_are_refused(kind: Any) -> None:
    with pytest.raises(BppsaError, match=rf"norm: {kind.__name__}\.forward reads its running statistics"):
        compiled(Net(kind).double()).step(*batch())


@pytest.mark.parametrize("kind", [ReadBehind, ReadInFunction])
def test_statistics_that_are_read_beside_their_norm_are_refused(kind: type[Net]) -> None:
    with pytest.raises(PartitionError, match=r"test_norms.py:\d+.*reads norm\.running_"):
        compiled(kind().double()).step(*batch())


@pytest.mark.parametrize("kind", [ReadBehind, ReadInFunction])
def test_statistics_that_nothing_follows_may_be_read(kind: type[Net]) -> None:
    plain = kind().double()
    plain.norm.eval()
    fast, (x, y) = compiled(copy.deepcopy(plain)), batch()
    assert torch.allclose(fast.step(x, y), functional.mse_loss(plain(x), y))
