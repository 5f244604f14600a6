"""Batches as data loaders give them: dicts, with the labels in them."""

from __future__ import annotations

import copy
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile, trainer
from bppsa.errors import ArgumentError
from bppsa.schedule import ddp, gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class Named(nn.Module):
    """ids, mask: [B, 4] -> [B, 3]; with labels [B], a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.b(self.a(ids * mask).tanh())
        return logits if labels is None else F.cross_entropy(logits, labels)


class OfAny(Named):
    def forward(self, **batch: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(**batch)


class OfMapping(Named):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(**batch)


def batch() -> dict[str, Tensor]:
    return {"mask": torch.rand(7, 4), "ids": torch.randn(7, 4), "labels": torch.tensor([0, -100, -100, -100, 1, 2, 1])}


def check(model: nn.Module, compiled: nn.Module, expected: Tensor, found: Tensor) -> None:
    expected.backward()
    support.close(found, expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))


@pytest.mark.parametrize("kind", [dict, UserDict])
@pytest.mark.parametrize("make", [Named, OfAny])
def test_the_models_arguments_in_a_mapping(make: type[nn.Module], kind: type) -> None:
    model, given = make(), batch()
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    check(model, compiled, model(**given), trainer(compiled).step(kind(given)))
    support.close(trainer(compiled).step(**given), model(**given).detach())


def test_a_model_that_takes_a_mapping() -> None:
    model, given = OfMapping(), batch()
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    check(model, compiled, model(given), trainer(compiled).step(given))


class Unlabelled(Named):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids, mask)


def of_several(output: Tensor, target: dict[str, Tensor]) -> Tensor:
    weight = target["weight"]
    return (F.cross_entropy(output, target["labels"], reduction="none") * weight).sum() / weight.sum()


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, of_several])
def test_what_the_forward_does_not_take_is_the_target(loss_fn: Any) -> None:
    model, given = Unlabelled(), batch()
    target: Any = given["labels"]
    if loss_fn is of_several:
        given["weight"], given["labels"] = torch.rand(7), target.clamp(min=0)
        target = {name: given[name] for name in ("labels", "weight")}
    compiled = compile(copy.deepcopy(model), schedule=ddp(), stages=2, microbatches=3, loss_fn=loss_fn)
    expected = loss_fn(model(given["ids"], given["mask"]), target)
    check(model, compiled, expected, trainer(compiled).step(given))
    support.close(trainer(compiled).step(**given), expected.detach())


def test_a_batch_without_a_target_is_an_error() -> None:
    compiled = compile(Named(), schedule=gpipe(), stages=2, microbatches=3, loss_fn=F.cross_entropy)
    with pytest.raises(ArgumentError, match="the model takes mask, ids, labels itself: give the target"):
        trainer(compiled).step(batch())
    with pytest.raises(ArgumentError, match="takes the model's arguments and then a target"):
        trainer(compiled).step()


def with_metrics(output: Tensor, target: Tensor) -> Any:
    hit = output.argmax(-1) == target
    loss = F.cross_entropy(output, target)
    return loss, {"hit": hit, "hits": hit.sum(), "rows": len(hit), "loss": loss, "name": "hits"}


def named_metrics(output: Tensor, target: Tensor) -> Any:
    loss, metrics = with_metrics(output, target)
    return {"loss": loss, "all": metrics}


@pytest.mark.parametrize("loss_fn", [with_metrics, named_metrics])
@pytest.mark.parametrize("schedule", [gpipe(), ddp()])
def test_metrics_come_in_the_order_of_micro_batches(loss_fn: Any, schedule: Any) -> None:
    model, x, target = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(7, 4), batch()["labels"]
    compiled = compile(copy.deepcopy(model), schedule=schedule, stages=2, microbatches=3, loss_fn=loss_fn)
    output = model(x)
    expected, metrics = with_metrics(output, target)
    found = trainer(compiled).step(x, target)
    check(model, compiled, expected, found)
    got = found.metrics if loss_fn is with_metrics else found.metrics["all"]
    assert torch.equal(got["hit"], metrics["hit"])
    assert int(got["hits"].sum()) == int(metrics["hits"])
    assert got["rows"].tolist() == [3, 2, 2]
    assert got["name"] == ["hits"] * 3
    support.close(got["loss"].nan_to_num() @ found.weights, expected.detach())
    assert (found * 2).__class__ is Tensor
