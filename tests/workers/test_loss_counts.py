"""Losses that divide by a count which some micro-batch has none of, or that decide by sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.errors import ArgumentError
from bppsa.schedule import gpipe
from tests.workers.test_loss_means import Tagger, check, of_rows, plain

pytestmark = pytest.mark.usefixtures("in_float64")


def over_ones(logits: Tensor, labels: Tensor) -> Tensor:
    return of_rows(logits, labels.clamp(min=0)).sum() / (labels == 1).sum()


def over_some(logits: Tensor, labels: Tensor) -> Tensor:
    return of_rows(logits, labels.clamp(min=0)).sum() / (labels == 1).sum().clamp(min=1)


@pytest.mark.parametrize("own", [False, True])
def test_a_loss_over_a_count_of_nothing_is_an_error(own: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model: nn.Module = Tagger(over_ones) if own else net
    options: dict[str, Any] = {} if own else {"loss_fn": over_ones}
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, **options)
    x, labels = torch.randn(3, 3, 4), torch.tensor([[0, 1, 2], [0, 0, 0], [1, 1, 0]])
    with pytest.raises(RuntimeError, match=r"count that is zero in micro-batch 1, which has a loss .*clamp\(min=1\)"):
        compiled.step(x, labels)


def test_a_least_count_mends_it() -> None:
    model, x, labels = Tagger(over_some), torch.randn(3, 3, 4), torch.tensor([[0, 1, 2], [0, 0, 0], [1, 1, 0]])
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    check(compiled, model, (x, labels), model(x, labels)["loss"], compiled.step(x, labels))


def test_what_somebody_says_to_count_for_nothing_may_have_a_loss() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    says = lambda labels: float((labels == 1).any())  # noqa: E731
    compiled = compile(net, schedule=gpipe(), stages=2, microbatches=3, loss_fn=plain, loss_weight=says)
    assert compiled.step(torch.randn(3, 3, 4), torch.tensor([[0, 1, 2], [0, 0, 0], [1, 1, 0]])).isfinite()


def by_length(logits: Tensor, labels: Tensor) -> Tensor:
    return plain(logits, labels) * (2 if len(logits) >= 6 else 1)


@pytest.mark.parametrize("stages", [2, [0, 1, 2]])
def test_a_loss_that_decides_by_the_rows_of_the_whole_batch_is_an_error(stages: Any) -> None:
    """Micro-batches have all but one branch, and so has a batch that is small enough."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    own = copy.deepcopy(net)
    cut = stages if isinstance(stages, int) else [own[i] for i in stages]
    compiled = compile(own, schedule=gpipe(), stages=cut, microbatches=3, loss_fn=by_length)
    x, labels = torch.randn(9, 3, 4), torch.randint(3, (9, 3))
    check(compiled, net, (x[:5], labels[:5]), plain(net(x[:5]), labels[:5]), compiled.step(x[:5], labels[:5]))
    with pytest.raises(
        ArgumentError, match=r"test_loss_counts\.py:\d+: .*shape\[0\] is 9, and Python decided otherwise"
    ):
        compiled.step(x, labels)


def test_terms_that_count_a_little_otherwise() -> None:
    """One label of many is ignored."""
    net, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.randn(300_000, 2)
    both = lambda z, labels: F.cross_entropy(z, labels) + 100 * z.square().mean()  # noqa: E731
    compiled = compile(copy.deepcopy(net), schedule=gpipe(), stages=2, microbatches=2, loss_fn=both)
    labels = torch.zeros(300_000, dtype=torch.long)
    labels[0] = -100
    check(compiled, net, (x, labels), both(net(x), labels), compiled.step(x, labels))
