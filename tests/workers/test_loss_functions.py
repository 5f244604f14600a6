"""Loss functions that no graph tells of, that are traced for other batches, or that read what they may not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bppsa
from bppsa import compile, trainer
from bppsa.distributed.losses.tracing import Traces
from bppsa.errors import ArgumentError, WorkerError
from bppsa.schedule import ddp, gpipe
from tests.workers import scripts, support
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")


class Tags(nn.Module):
    """x: [B, T] -> [B, T, 9]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(9, 5), nn.Linear(5, 5), nn.Linear(5, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.embed(x)).tanh())


def words(*lengths: int, steps: int = 6) -> tuple[Tensor, Tensor]:
    labels = torch.randint(9, (len(lengths), steps))
    for row, length in zip(labels, lengths, strict=True):
        row[length:] = -100
    return torch.randint(9, labels.shape), labels


def scheduled(model: nn.Module, loss_fn: Any, **options: Any) -> nn.Module:
    given = {"schedule": gpipe(), "stages": 2, "microbatches": 4} | options
    return compile(copy.deepcopy(model), loss_fn=loss_fn, **given)


def check(compiled: nn.Module, model: nn.Module, loss_fn: Callable[..., Tensor], x: Tensor, target: Any) -> None:
    loss = loss_fn(model(x), target)
    loss.backward()
    support.close(compiled.step(x, target), loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    for net in (compiled, model):
        net.zero_grad()


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")


def by_values(scores: Tensor, labels: Tensor) -> Tensor:
    return summed(scores, labels) / int((labels.numpy() >= 0).sum())


def by_a_test(scores: Tensor, labels: Tensor) -> Tensor:
    count = (labels >= 0).sum()
    return summed(scores, labels) / count if bool(count > 0) else scores.sum() * 0


@pytest.mark.parametrize("loss_fn", [by_values, by_a_test])
@pytest.mark.parametrize("lengths", [(6, 4, 2, 1), (6, 6, 4, 4, 2, 2, 1, 1)])
@pytest.mark.parametrize("schedule", [gpipe(), ddp()])
def test_a_count_that_cannot_be_traced_is_found_out(loss_fn: Any, lengths: tuple[int, ...], schedule: Any) -> None:
    """With a row in each micro-batch, and with rows of one length in each."""
    with pytest.raises(WorkerError, match=r"it is no mean over rows.* give loss_weight="):
        scheduled(Tags(), loss_fn, schedule=schedule).step(*words(*lengths))


@pytest.mark.parametrize("loss_fn", [by_values, by_a_test])
def test_where_rows_count_alike_it_is_taken(loss_fn: Any) -> None:
    model = Tags()
    check(scheduled(model, loss_fn), model, loss_fn, *words(6, 6, 6, 6))
    check(scheduled(model, loss_fn, microbatches=1), model, loss_fn, *words(6, 4, 2, 1))
    weighted = scheduled(model, loss_fn, loss_weight=lambda labels: (labels >= 0).sum())
    check(weighted, model, loss_fn, *words(6, 4, 2, 1))


@pytest.mark.filterwarnings("ignore:.*divide")
def test_a_part_that_is_infinite_is_no_part_of_a_mean() -> None:
    def short(scores: Tensor, labels: Tensor) -> Tensor:
        return summed(scores, labels) / torch.tensor(float(len(labels.numpy()) - 1))

    with pytest.raises(WorkerError, match="no mean over rows"):
        scheduled(Tags(), short).step(*words(6, 6, 6, 6))


class SaysSum(nn.Module):
    reduction = "sum"

    def __init__(self, divisor: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return summed(scores, labels) / self.divisor(labels)


class OverRows(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return super().forward(scores.transpose(1, 2), labels) / len(labels)


class Shifted(nn.CrossEntropyLoss):
    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return super().forward(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def mapped(scores: Tensor, labels: Tensor) -> Tensor:
    return torch.vmap(lambda a, b: F.cross_entropy(a, b))(scores, labels).mean()


def test_a_loss_that_maps_over_rows_is_tried() -> None:
    model = Tags()
    check(scheduled(model, mapped), model, mapped, *words(6, 6, 6, 6))


def named(scores: Tensor, labels: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), labels, reduction=reduction) / len(labels)


@pytest.mark.parametrize(
    "loss_fn", [SaysSum(lambda labels: len(labels)), OverRows(), Shifted(), partial(named, reduction="sum")]
)
def test_a_subclass_or_an_attribute_tells_nothing(loss_fn: Any) -> None:
    model = Tags()
    compiled = scheduled(model, loss_fn)
    for lengths in ((6,) * 8, (6, 6, 6, 5, 4, 3, 2, 2), (5, 4, 3, 2)):
        check(compiled, model, loss_fn, *words(*lengths))


def test_what_says_that_it_is_a_sum_and_cannot_be_traced_is_tried() -> None:
    model, loss_fn = Tags(), SaysSum(lambda labels: 2.0 + 0 * labels.numpy().sum())
    check(scheduled(model, loss_fn), model, loss_fn, *words(6, 4, 2, 1))
    with pytest.raises(WorkerError, match="it is no sum over rows"):
        scheduled(model, SaysSum(lambda labels: float(labels.numpy().shape[0]))).step(*words(6, 4, 2, 1))


def masked(scores: Tensor, target: dict[str, Tensor]) -> Tensor:
    losses = F.cross_entropy(scores.transpose(1, 2), target["labels"].clamp(min=0), reduction="none")
    return (losses * target["mask"]).sum() / target["mask"].sum()


def with_mask(dtype: torch.dtype, *lengths: int, steps: int = 6) -> tuple[Tensor, dict[str, Tensor]]:
    x, labels = words(*lengths, steps=steps)
    return x, {"labels": labels, "mask": (labels >= 0).to(dtype)}


def test_it_is_traced_again_for_other_targets() -> None:
    """After a batch of one row, and for a mask of another dtype."""
    model = Tags()
    compiled = scheduled(model, masked, example_inputs=words(6, 6)[0])
    for dtype, lengths in (
        (torch.bool, (6,)),
        (torch.bool, (6, 4, 2, 1)),
        (torch.float64, (6, 6, 4, 4, 2, 2, 1, 1)),
        (torch.float64, (6, 4, 2, 1)),
        (torch.bool, (6, 6, 1, 1, 1)),
    ):
        check(compiled, model, masked, *with_mask(dtype, *lengths))


def by_steps(scores: Tensor, labels: Tensor) -> Tensor:
    total = sum(
        F.cross_entropy(scores[:, t], labels[:, t], reduction="sum") for t in range(scores.shape[1])
    )  # Python's loop, which a graph has for one number of steps
    return total / (labels >= 0).sum()


def test_it_is_traced_again_for_another_number_of_steps() -> None:
    model = Tags()
    compiled = scheduled(model, by_steps, example_inputs=words(6, 6, steps=5)[0])
    for steps in (6, 7, 6):
        check(compiled, model, by_steps, *words(6, 4, 2, 1, steps=steps))


def test_a_model_cut_by_hand_has_its_loss_traced() -> None:
    model = Tags()
    layers = nn.Sequential(model.embed, model.hidden, model.head)
    own = copy.deepcopy(layers)
    compiled = compile(own, schedule=gpipe(), stages=list(own), microbatches=4, loss_fn=masked)
    check(compiled, layers, masked, *with_mask(torch.bool, 6, 4, 2, 1))


@pytest.mark.parametrize("data", ["local", "global"])
def test_ranks_that_cannot_try_a_loss_ask_what_it_counts(data: str) -> None:
    for said in run_ranks(scripts.untraced, 2, data):
        assert "so that none can try what it counts; give loss_weight=" in said


def test_the_loss_of_a_model_on_meta_is_traced() -> None:
    """As of one whose weights are on other ranks."""
    x, target = with_mask(torch.bool, 6, 4, 2, 1)
    with torch.device("meta"):
        model = Tags()
    stages = bppsa.partition(model, x.to("meta"), stages=2)
    means = Traces(masked, stages).of(target, [x], len(x)).means
    assert means is not None
    assert means.count is not None


def penalised(model: nn.Module) -> Callable[..., Tensor]:
    return lambda y, t: F.cross_entropy(y, t) + sum(p.square().sum() for p in model.parameters())


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Parameter(torch.tensor(1.3))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores * self.heat, labels)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_a_parameter_that_the_loss_reads_is_an_error() -> None:
    x, target, model = torch.randn(8, 4), torch.randint(3, (8,)), perceptron()
    compiled = compile(model, schedule=gpipe(), stages=2, microbatches=2, loss_fn=penalised(model))
    with pytest.raises(WorkerError, match=r"loss_fn reads the Parameter \d\.(weight|bias), .* return the loss"):
        compiled.step(x, target)
    with pytest.raises(ArgumentError, match=r"loss_fn reads the Parameter heat of loss_fn \(Tempered\)"):
        scheduled(model, Tempered()).step(x, target)
    like = torch.randn(8, 3, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"loss_fn reads target\['like'\]"):
        scheduled(model, lambda y, t: (y - t["like"]).square().mean()).step(x, {"like": like})
    apart = torch.randn(3, requires_grad=True)
    with pytest.raises(WorkerError, match=r"loss_fn reads the tensor \[3\]"):
        scheduled(model, lambda y, t: F.cross_entropy(y * apart, t)).step(x, target)


def test_a_loss_may_be_checkpointed_without_a_backward_inside() -> None:
    x, target, model = torch.randn(8, 4), torch.randint(3, (8,)), perceptron()
    made = [partial(checkpoint, F.cross_entropy, use_reentrant=reentrant) for reentrant in (False, True)]
    check(scheduled(model, made[0]), model, F.cross_entropy, x, target)
    with pytest.raises(WorkerError, match=r"loss_fn calls torch\.utils\.checkpoint .* give it use_reentrant=False"):
        scheduled(model, made[1]).step(x, target)


def test_a_loss_may_read_what_wants_no_gradient() -> None:
    x, target, model = torch.randn(8, 4), torch.randint(3, (8,)), perceptron()
    scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
    check(
        scheduled(model, lambda y, t: F.cross_entropy(y * scale, t)),
        model,
        lambda y, t: F.cross_entropy(y * scale, t),
        x,
        target,
    )


def test_a_target_by_name_beside_an_argument() -> None:
    model, x, target = perceptron(), torch.randn(8, 4), torch.randint(3, (8,))
    compiled = scheduled(model, F.cross_entropy)
    support.close(trainer(compiled).step(x, labels=target), F.cross_entropy(model(x), target).detach())


def test_a_target_without_a_loss_says_what_is_missing() -> None:
    compiled = compile(perceptron(), schedule=gpipe(), stages=2, microbatches=2)
    with pytest.raises(ArgumentError, match=r"step\(x, target\) needs loss_fn=; without it every argument goes to"):
        compiled.step(torch.randn(8, 4), torch.randint(3, (8,)))
