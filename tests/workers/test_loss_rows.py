"""Losses for which rows are not what they seem: libraries' ops, copies of rows, tables cut to the number of rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
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


TABLE = torch.linspace(0.5, 2, 64, dtype=torch.float64)


def rowwise(y: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(y, t, reduction="none")


def filled(y: Tensor, t: Tensor) -> Tensor:
    both = y.new_zeros(2 * len(y), 5)
    both[: len(y)] = y
    both[len(y) :] = 2 * y
    return F.cross_entropy(both, t.repeat_interleave(2))


UNLIKE: list[Loss] = [
    filled,
    lambda y, t: F.cross_entropy(torch.cat([y, y * 2]), t.repeat_interleave(2)),
    lambda y, t: F.cross_entropy(torch.cat([y, y * 2]), t.repeat_interleave(2), reduction="sum"),
    lambda y, t: (rowwise(torch.cat([y, y * 2]), t.repeat(2)) * t.repeat_interleave(2)).mean(),
    lambda y, t: torch.cat([y, y * 2]).view(-1, 2, 5).diff(dim=1).square().mean(),
    lambda y, t: torch.cat([y, y * 2])[::2].square().mean(),
    lambda y, t: torch.cat([y, y * 2])[len(y) // 2 : len(y) // 2 + len(y)].square().mean(),
    lambda y, t: sum(((i + 1) * x.square()).sum() for i, x in enumerate(y.repeat_interleave(2, 0).chunk(2))),
    lambda y, t: (y.reshape(-1) - t.repeat(y.shape[1])).square().mean(),
    lambda y, t: (y.T.reshape(-1) - t.repeat_interleave(y.shape[1])).square().mean(),
    lambda y, t: F.cross_entropy(torch.stack([y, y * 2], 1).flatten(0, 1), t.repeat(2)),
    lambda y, t: F.cross_entropy(torch.stack([y, y * 2]).flatten(0, 1), t.repeat_interleave(2)),
    lambda y, t: F.l1_loss(y.flatten(), torch.cat([t.double()] * y.shape[1])),
    lambda y, t: (y.flatten() * TABLE[:5].repeat_interleave(len(y))).mean(),
    lambda y, t: (y.T.flatten() * TABLE[:5].repeat(len(y))).mean(),
    lambda y, t: F.cross_entropy(torch.cat([y, y * 2])[t.repeat_interleave(2) > 1], t.repeat(2)[t.repeat(2) > 1]),
]
LIKE: list[Loss] = [
    lambda y, t: F.cross_entropy(torch.cat([y, y * 2]), t.repeat(2)),
    lambda y, t: F.cross_entropy(torch.stack([y, y * 2]).flatten(0, 1), torch.cat([t, t])),
    lambda y, t: F.cross_entropy(torch.stack([y, y * 2], 1).flatten(0, 1), t.repeat_interleave(2)),
    lambda y, t: torch.cat([y, y * 2]).view(2, -1, 5).diff(dim=0).square().mean(),
    lambda y, t: y.repeat_interleave(2, 0)[1::2].square().mean() + torch.cat([y, -y])[len(y) :].sigmoid().mean(),
    lambda y, t: (y.reshape(-1) - t.repeat_interleave(y.shape[1])).square().mean(),
    lambda y, t: (y.T.reshape(-1) - t.repeat(y.shape[1])).square().mean(),
    lambda y, t: (y.flatten() * TABLE[:5].repeat(len(y))).mean(),
    lambda y, t: (y.T.flatten() * TABLE[:5].repeat_interleave(len(y))).mean(),
    lambda y, t: (y * TABLE[:5].expand(len(y), 5) + torch.zeros(len(y), 5)).square().mean(),
    lambda y, t: sum(((i + 1) * x.square()).sum() for i, x in enumerate(torch.cat([y, y.tanh()]).chunk(2))),
    lambda y, t: sum(x.square().mean() for x in torch.cat([y, y.tanh()]).split(len(y))),
    lambda y, t: F.cross_entropy(torch.cat([y, y * 2])[t.repeat(2) > 1], t.repeat(2)[t.repeat(2) > 1]),
    lambda y, t: y.T[F.one_hot(t, 5).T > 0].square().mean(),
]


@pytest.mark.parametrize("loss", UNLIKE)
def test_copies_of_all_rows_are_not_copies_of_each(loss: Loss) -> None:
    refused(loss, classes())


@pytest.mark.parametrize("loss", LIKE)
def test_copies_of_rows_in_one_order_are_taken(loss: Loss) -> None:
    taken(loss, classes())


CUT: list[Callable[[int], Tensor]] = [
    lambda rows: TABLE[:rows],
    lambda rows: TABLE.narrow(0, 0, rows),
    lambda rows: TABLE[-rows:],
    lambda rows: torch.eye(12, 5)[:rows].sum(1),
    lambda rows: TABLE[4 : 4 + rows],
    lambda rows: TABLE[:12].split(rows)[0],
]


@pytest.mark.parametrize("cut", CUT)
def test_a_table_that_is_cut_to_the_number_of_rows_is_not_of_the_rows(cut: Callable[[int], Tensor]) -> None:
    refused(lambda y, t: (rowwise(y, t) * cut(len(y))).mean(), classes())


def values() -> Tensor:
    return torch.tensor([0.3, 1.0, 0.2, 0.7, 0.9, 0.1, 0.4], dtype=torch.float64)


class Within(nn.Module):
    """A loss in which a module of PyTorch's is called as a whole."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return 2 * self.loss(y, target)


PAIRS: list[Loss] = [
    nn.MSELoss(reduction="sum"),
    nn.SmoothL1Loss(),
    partial(F.l1_loss, reduction="sum"),
    Within(nn.MSELoss(reduction="sum")),
    Within(nn.HuberLoss()),
    lambda y, t: F.mse_loss(y, t, reduction="sum"),
    lambda y, t: F.poisson_nll_loss(y, t),
    lambda y, t: F.kl_div(y, t, reduction="sum"),
    lambda y, t: F.hinge_embedding_loss(y, t.round() * 2 - 1),
]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", PAIRS)
def test_a_loss_of_all_pairs_of_rows_is_no_mean(loss: Loss) -> None:
    refused(loss, values(), r"neither a mean nor a sum over rows", columns=1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: F.cross_entropy(y.T, torch.tensor([0, 1, 0, 2, 1])),
        lambda y, t: F.cross_entropy(y[:, 0], y.detach()[:, 1].softmax(0)),
        lambda y, t: F.cosine_embedding_loss(y[:, 0], y[:, 1], torch.tensor(1.0)),
    ],
)
def test_a_loss_with_rows_for_classes_is_no_mean(loss: Loss) -> None:
    refused(loss, classes())


PAIRED: list[Loss] = [
    nn.MSELoss(reduction="sum"),
    nn.KLDivLoss(reduction="batchmean"),
    Within(nn.KLDivLoss(reduction="batchmean")),
    Within(nn.SmoothL1Loss()),
    lambda y, t: F.mse_loss(y, t.mean(1, keepdim=True).expand(-1, 5)),
    lambda y, t: F.binary_cross_entropy_with_logits(y, t, weight=TABLE[:5], pos_weight=TABLE[:5]),
    lambda y, t: F.cross_entropy(y, t.softmax(1)),
    lambda y, t: F.cross_entropy(y.T[None], t.argmax(1)[None]),
    lambda y, t: F.triplet_margin_loss(y, t, t.flip(1)),
    lambda y, t: F.cosine_embedding_loss(y, t, t[:, 0].round() * 2 - 1),
    lambda y, t: F.multi_margin_loss(y, t.argmax(1)),
    lambda y, t: F.ctc_loss(
        y[None].expand(6, -1, -1).log_softmax(-1),
        t.argsort(1)[:, :2].clamp(min=1),
        t[:, 0].long() + 6,
        t[:, 0].long() + 2,
    ),
]


@pytest.mark.filterwarnings("ignore:.*batchmean")
@pytest.mark.parametrize("loss", PAIRED)
def test_a_loss_of_each_row_is_taken(loss: Loss) -> None:
    taken(loss, torch.rand(7, 5))
