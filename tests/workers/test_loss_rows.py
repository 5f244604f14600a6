"""Losses for which rows are not what they seem: libraries' ops, copies of rows, tables cut to the number of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.errors import ScheduleError
from bppsa.schedule import gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")

NO_MEAN = r"test_loss_rows.py:\d+: .*neither a mean nor a sum over rows"
Loss = Callable[..., Tensor]


@torch.library.custom_op("bppsa_tests::mean", mutates_args=())
def named_mean(x: Tensor) -> Tensor:
    return x.median().clone()


@torch.library.custom_op("bppsa_tests::shift", mutates_args=())
def reduced(x: Tensor, reduction: int) -> Tensor:
    return x.abs().max().clone()


for op in (named_mean, reduced):
    op.register_fake(lambda x, *_: x.new_empty(()))
    op.register_autograd(
        lambda ctx, g: (g * torch.ones(ctx.shape), *[None] * ctx.others),
        setup_context=lambda ctx, inputs, output: vars(ctx).update(shape=inputs[0].shape, others=len(inputs) - 1),
    )


def scheduled(loss_fn: Any, columns: int = 5) -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, columns))
    return compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss_fn), model


def refused(loss_fn: Any, target: Tensor, match: str = NO_MEAN, columns: int = 5) -> None:
    compiled, _ = scheduled(loss_fn, columns)
    with pytest.raises(ScheduleError, match=match):
        compiled.step(torch.randn(len(target), 4), target)


def taken(loss_fn: Any, target: Tensor, columns: int = 5) -> None:
    compiled, model = scheduled(loss_fn, columns)
    x = torch.randn(len(target), 4)
    loss = loss_fn(model(x), target)
    loss.backward()
    support.close(compiled.step(x, target), loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))


def classes() -> Tensor:
    return torch.tensor([0, 1, 4, 2, 2, 3, 1])


def test_an_op_of_a_library_is_not_pytorchs_of_that_name() -> None:
    refused(lambda y, t: torch.ops.bppsa_tests.mean(F.cross_entropy(y, t, reduction="none")), classes())
    refused(lambda y, t: torch.ops.bppsa_tests.shift(F.cross_entropy(y, t, reduction="none"), 2), classes())
