"""Models of each family, cut and trained on workers, have the gradients and buffers of a loop in one process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from bppsa import compile
from bppsa.schedule import Recipe, lpp, one_f_one_b, zero_bubble
from tests.breadth import diagonal
from tests.fxpasses.partition.families import FAMILIES
from tests.fxpasses.partition.zoo import Sample
from tests.workers import support

ROWS, MICROBATCHES, STAGES = 7, 3, 4


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.manual_seed(0)
    with support.float64():
        yield


def loss_of(output: Any, target: Tensor) -> Tensor:
    """A mean over rows that touches every output. target: [B]."""
    return sum(
        ((x.flatten(1).T if x.dim() > 1 else x) - target * i).square().mean() for i, x in enumerate(tree_leaves(output))
    )


def part(x: Any, b: int) -> Any:
    return x.tensor_split(MICROBATCHES)[b] if isinstance(x, Tensor) else x


def serial(model: nn.Module, args: Any, kwargs: Any, target: Tensor) -> float:
    """A loop over micro-batches."""
    total = 0.0
    for b in range(MICROBATCHES):
        rows = part(target, b)
        output = model(*tree_map(lambda x: part(x, b), args), **tree_map(lambda x: part(x, b), kwargs))  # noqa: B023
        loss = loss_of(output, rows) * (len(rows) / ROWS)
        loss.backward()
        total += float(loss.detach())
    return total


@pytest.mark.filterwarnings(
    "ignore:.*torch.utils.checkpoint would:UserWarning", "ignore:None of the inputs:UserWarning"
)
@pytest.mark.parametrize(
    ("make", "schedule"),
    diagonal(FAMILIES, [one_f_one_b(), lpp(G=2), zero_bubble()]),
    ids=lambda one: getattr(one, "__name__", None) or one.name,
)
def test_trains_as_in_one_process(make: type[Sample], schedule: Recipe) -> None:
    model = make()
    (args, kwargs), target = model.inputs(ROWS), torch.randn(ROWS)
    compiled = compile(
        copy.deepcopy(model), schedule=schedule, stages=STAGES, microbatches=MICROBATCHES, loss_fn=loss_of
    )
    for _ in range(2):
        expected = serial(model, args, kwargs, target)
        assert float(compiled.step(*args, target, **kwargs)) == pytest.approx(expected, rel=support.EXACT)
        support.same(support.gradients(compiled), support.gradients(model))
        support.close(dict(compiled.named_buffers()), dict(model.named_buffers()))
        for trained in (model, compiled):
            torch.optim.SGD(trained.parameters(), lr=0.01).step()
            trained.zero_grad()
    assert len(compiled.stages) == STAGES
    model.eval(), compiled.eval()
    with torch.no_grad():
        support.close(compiled(*args, **kwargs), model(*args, **kwargs))
