"""Losses whose terms count in unlike ways: a mean over labels of which some are ignored beside one over all rows, sums
over two masks, a penalty of the weights beside a sum. Each term makes up that of the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile, trainer
from bppsa.errors import InputError, ScheduleError
from bppsa.schedule import Recipe, ddp, fsdp, gpipe, one_f_one_b
from tests.breadth import alternate
from tests.workers import scripts, support
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")

B = 7
LABELS = torch.tensor(
    [[-100, -100, 1], [-100, 2, -100], [0, 1, 2], [2, 2, 1], [0, -100, 0], [1, 1, 1], [-100, -100, -100]]
)


def classes(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def regular(logits: Tensor, labels: Tensor) -> Tensor:
    return classes(logits, labels) + 0.1 * logits.logsumexp(-1).square().mean()


def in_place(logits: Tensor, labels: Tensor) -> Tensor:
    loss = classes(logits, labels)
    loss.add_(logits.square().mean())
    loss *= 2
    return loss


def masks(logits: Tensor, labels: Tensor) -> Tensor:
    """One of the masks selects nothing in some micro-batches, where the other selects something."""
    some, ones, rows = (labels >= 0).double(), (labels == 1).double(), logits.square().sum(-1)
    return (rows * some).sum() / some.sum() - 0.5 * (rows.sqrt() * ones).sum() / ones.sum()


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    by_name = F.cross_entropy(input=logits.flatten(0, 1), target=labels.flatten())
    return logits[labels == 1].square().mean() + by_name + F.softplus(logits).mean()


def stacked(logits: Tensor, labels: Tensor) -> Tensor:
    terms = torch.stack([classes(logits, labels), logits.abs().mean(), logits[:, 0].sigmoid().mean() * 3])
    return (terms * torch.tensor([1.0, 2.0, 0.5])).mean()


def nested(logits: Tensor, labels: Tensor) -> Tensor:
    both = classes(logits, labels) + logits.abs().mean()
    return (both / 3 + classes(logits, labels.clamp(min=0), reduction="sum").view(1)).squeeze() * 0.5 + 4.0


def with_least(logits: Tensor, labels: Tensor) -> Tensor:
    """A count that is never zero."""
    ones, rows = labels == 1, logits.square().sum(-1)
    return (rows * ones).sum() / (ones.sum() + 1e-3) + rows.mean()


def penalised(logits: Tensor, labels: Tensor) -> Tensor:
    """What all micro-batches have counts though one has no labels."""
    return 2 - (-classes(logits, labels) + 0.25) * 1.5


def beside_rows(logits: Tensor, labels: Tensor) -> Tensor:
    return classes(logits, labels) + 0.01 * len(logits)


LOSSES = [regular, penalised, with_least, in_place, masks, selected, stacked, nested, beside_rows]


class Tagger(nn.Module):
    """x: [B, T, 4] -> the loss of its kind, which takes logits [B, T, 3] and labels [B, T]."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.loss = nn.Linear(4, 5), nn.Linear(5, 3), loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.b(self.a(x).tanh())
        return {"loss": self.loss(logits, labels), "logits": logits}


def check(compiled: Any, model: nn.Module, expected: Tensor, found: Tensor) -> None:
    expected.backward()
    support.close(found.detach(), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))


@pytest.mark.parametrize("microbatches", [2, B])
@pytest.mark.parametrize("loss", LOSSES)
def test_of_a_model_that_returns_its_loss(loss: Callable[..., Tensor], microbatches: int) -> None:
    model = Tagger(loss)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=microbatches)
    for labels in (LABELS, LABELS.clamp(min=0), LABELS):
        x = torch.randn(B, 3, 4)
        check(compiled, model, model(x, labels)["loss"], trainer(compiled).step(x, labels))


@pytest.mark.parametrize("loss", alternate(LOSSES))
def test_of_a_loss_function(loss: Callable[..., Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def with_metrics(logits: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found = loss(logits, labels)
        return found, {"seen": logits.detach(), "loss": found.detach()}

    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=with_metrics)
    for labels in (LABELS.clamp(min=0), LABELS):
        x = torch.randn(B, 3, 4)
        found = compiled.step(x, labels)
        support.close(found.metrics["seen"], model(x).detach())
        support.close(found.metrics["loss"][0], loss(model(x[:3]), labels[:3]).detach())  # its own, not its share
        check(compiled, model, loss(model(x), labels), found)


@pytest.mark.filterwarnings("ignore:called as a module")
def test_called_as_a_module_and_in_evaluation() -> None:
    model, x = Tagger(masks), torch.randn(B, 3, 4)
    compiled = compile(copy.deepcopy(model), schedule=one_f_one_b(), stages=2, microbatches=B)
    expected, found = model(x, LABELS), compiled(x, LABELS)
    support.close(found, expected)
    ((3 * found["loss"]) + found["logits"].mean()).backward()
    check(compiled, model, 3 * expected["loss"] + expected["logits"].mean(), 3 * found["loss"] + found["logits"].mean())
    with torch.no_grad():
        support.close(compiled.eval()(x, LABELS), model.eval()(x, LABELS))


class Expert(nn.Module):
    """Returns what the tokens that are no padding choose on the average, as experts do to be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(4, 2), nn.Linear(4, 4)

    def forward(self, h: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.gate(h).softmax(-1).square().sum(-1)
        return h + self.out(h).tanh(), (shares * mask).sum() / mask.sum()


class Experts(nn.Module):
    """Terms of unlike ways are added up in early stages too."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = nn.ModuleList(Expert() for _ in range(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor, mask: Tensor) -> dict[str, Tensor]:
        balance = torch.zeros(())
        for expert in self.experts:
            x, share = expert(x, mask)
            balance = balance + share + 0.01 * x.abs().mean()
        loss = classes(self.head(x), labels) + 0.5 * balance
        loss += 0.1 * sum(weight.square().sum() for weight in self.head.parameters())
        return {"loss": loss, "logits": x}


@pytest.mark.parametrize("recompute", [None, "full", "selective"])
@pytest.mark.parametrize("schedule", [ddp(), fsdp(), one_f_one_b()])
def test_in_several_stages(schedule: Recipe, recompute: str | None) -> None:
    model, mask = Experts(), (torch.rand(B, 3) < 0.5).double()
    mask[0] = 0
    compiled = compile(copy.deepcopy(model), schedule=schedule, stages=3, microbatches=B, recompute=recompute)
    x = torch.randn(B, 3, 4)
    found = trainer(compiled).step(x, LABELS, mask)
    check(compiled, model, model(x, LABELS, mask)["loss"], found)


class Early(nn.Module):
    """Terms that divide by a count are stages away from their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen, mask = [classes(self.head(x), labels)], (labels == 1).double()
        for layer in self.layers:
            x = layer(x).tanh()
            seen.append((x.square().sum(-1) * mask).sum() / mask.sum())
        weight = sum(layer.weight.square().sum() for layer in self.layers)
        return {"loss": sum(seen) + x.abs().mean() + 0.1 * weight, "logits": x}


def test_terms_of_early_stages() -> None:
    model, x = Early(), torch.randn(B, 3, 4)
    compiled = compile(copy.deepcopy(model), schedule=one_f_one_b(), stages=4, microbatches=B)
    check(compiled, model, model(x, LABELS)["loss"], trainer(compiled).step(x, LABELS))
    with torch.no_grad():
        support.close(compiled.eval()(x, LABELS), model.eval()(x, LABELS))


def test_a_number_that_is_given_is_not_counted() -> None:
    """Though it is infinite, and made of nothing that is not."""

    def limited(logits: Tensor, labels: Tensor) -> Tensor:
        limit = torch.full((), torch.inf)
        return classes(logits, labels) + torch.minimum(3 * logits, limit).square().mean()

    model, x = Tagger(limited), torch.randn(B, 3, 4)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=B)
    check(compiled, model, model(x, LABELS)["loss"], trainer(compiled).step(x, LABELS))


def test_a_term_without_a_count_in_the_batch_is_no_number() -> None:
    """Though another has none in a micro-batch alone."""

    def both(logits: Tensor, labels: Tensor) -> Tensor:
        return classes(logits, labels.clamp(max=-100)) + logits[labels == 1].square().mean() + logits.abs().mean()

    compiled, x = compile(Tagger(both), schedule=gpipe(), stages=2, microbatches=B), torch.randn(B, 3, 4)
    assert torch.isnan(Tagger(both)(x, LABELS)["loss"])
    assert torch.isnan(trainer(compiled).step(x, LABELS))


def test_a_term_without_a_count_that_has_a_loss_is_an_error() -> None:
    def over_ones(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.square().sum() / (labels == 1).sum() + logits.abs().mean()

    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    compiled = compile(model, schedule=gpipe(), stages=2, microbatches=B, loss_fn=over_ones)
    with pytest.raises(RuntimeError, match=r"count that is zero in micro-batch 1, which has a loss .*clamp\(min=1\)"):
        trainer(compiled).step(torch.randn(B, 3, 4), LABELS)


@pytest.mark.parametrize("row", [1, 2])
def test_what_is_no_number_is_not_lost(row: int) -> None:
    """In a micro-batch without such labels, and in one with them."""
    model, x = Tagger(selected), torch.randn(B, 3, 4)
    x[row] = torch.nan
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=B)
    assert torch.isnan(model(x, LABELS)["loss"])
    assert torch.isnan(trainer(compiled).step(x, LABELS))


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / 2


def test_terms_beside_a_function_of_the_users_are_an_error_where_they_count_otherwise() -> None:
    """No graph tells what that does, so none runs in the place of loss_fn."""
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(B, 3, 4)
    loss = lambda *given: regular(Halved.apply(given[0]), given[1])  # noqa: E731
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss)
    check(compiled, model, loss(model(x), LABELS.clamp(min=0)), compiled.step(x, LABELS.clamp(min=0)))
    with pytest.raises(InputError, match=r"test_loss_terms.py:\d+: .*terms that count otherwise"):
        compiled.step(x, LABELS)


def test_views_that_are_written_to_are_an_error() -> None:
    def by_view(logits: Tensor, labels: Tensor) -> Tensor:
        terms = torch.stack([classes(logits, labels), logits.abs().mean()])
        terms[0] += logits.square().mean()
        return terms.sum()

    compiled = compile(Tagger(by_view), schedule=gpipe(), stages=2, microbatches=3)
    with pytest.raises(ScheduleError, match=r"test_loss_terms.py:\d+: terms\[0\]"):
        trainer(compiled).step(torch.randn(B, 3, 4), LABELS)


@pytest.mark.parametrize(("name", "data"), [("ddp", "local"), pytest.param("fsdp", "global", marks=pytest.mark.slow)])
def test_on_ranks(name: str, data: str) -> None:
    model = scripts.weighted(penalty=0.1)
    loss = model(*scripts.labelled())
    loss.backward()
    expected = support.gradients(model)
    for found, grads in run_ranks(scripts.ignoring, 2, name, data, 0.1):
        assert found == pytest.approx(loss.item())
        support.same(grads, {name: grad for name, grad in expected.items() if name in grads})
