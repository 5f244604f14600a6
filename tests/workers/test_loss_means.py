"""Losses that divide by what they count: micro-batches of unlike counts give the gradients of the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.errors import InputError, ScheduleError
from bppsa.schedule import ddp, gpipe
from tests.breadth import alternate
from tests.workers import scripts, support
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")

LABELS = torch.tensor([[-100, -100, 1], [-100, 2, -100], [0, 1, 2], [2, 2, 1], [0, -100, 0], [1, 1, 1], [-100, 0, 0]])


class Tagger(nn.Module):
    """x: [B, T, 4] -> the loss of its kind, which takes logits [B, T, 3] and labels [B, T]."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.loss = nn.Linear(4, 5), nn.Linear(5, 3), loss
        self.register_buffer("classes", torch.tensor([1.0, 3.0, 0.5]))

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.b(self.a(x).tanh())
        return {"loss": self.loss(logits, labels), "logits": logits}


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    shift = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.view(-1, 3).float().double(), shift.reshape(-1)) * 2


def likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    return F.nll_loss(logits.log_softmax(-1).transpose(1, 2), labels, weight=weight, ignore_index=2 - 102)


def emptied(logits: Tensor, labels: Tensor) -> Tensor:
    """Through a view of one row."""
    changed = logits.clone()
    changed[0] = 0
    return changed.square().mean()


def of_rows(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def masked(logits: Tensor, labels: Tensor) -> Tensor:
    mask = (labels >= 0).to(logits)
    return (of_rows(logits, labels) * mask).sum() / mask.sum().clamp(min=1)


def normalised(logits: Tensor, labels: Tensor) -> Tensor:
    mask = (labels >= 0).to(logits)
    weight = mask / mask.mean()
    return (of_rows(logits, labels) * weight).mean()


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    return of_rows(logits, labels)[labels >= 0].mean()


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / 7.0


def by_sequence(logits: Tensor, labels: Tensor) -> Tensor:
    mask = (labels >= 0).to(logits)
    return ((of_rows(logits, labels) * mask).sum(1) / mask.sum(1)).mean() + 0.1 * logits.square().mean()


def picked(logits: Tensor, labels: Tensor) -> Tensor:
    """By numbers of rows, and a count that Python reads."""
    rows, mask = torch.arange(len(labels))[:, None], labels >= 0
    likely = logits.log_softmax(-1)[rows, torch.arange(3), labels.clamp(min=0)]
    return -(likely * mask).sum() / mask.sum().item()


def by_length(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.square().sum() / len(logits)


MEANS = [
    plain,
    shifted,
    likelihood,
    masked,
    normalised,
    selected,
    summed,
    by_sequence,
    picked,
    by_length,
]


def check(compiled: Any, model: nn.Module, given: tuple[Tensor, ...], loss: Tensor, found: Tensor) -> None:
    loss.backward()
    support.close(found, loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    for net in (compiled, model):
        net.zero_grad()


@pytest.mark.parametrize("loss", MEANS)
def test_a_model_that_returns_its_loss(loss: Callable[..., Tensor]) -> None:
    model = Tagger(loss)
    compiled = compile(copy.deepcopy(model), schedule=ddp() if loss is masked else gpipe(), stages=2, microbatches=3)
    for labels in (LABELS.clamp(min=0), LABELS, LABELS[:5].flip(0)):
        x = torch.randn(len(labels), 3, 4)
        check(compiled, model, (x, labels), model(x, labels)["loss"], compiled.step(x, labels))


def test_a_size_that_is_ignored() -> None:
    """As where an answer begins or ends behind the last token."""

    def answer(logits: Tensor, labels: Tensor) -> Tensor:
        steps = logits.size(1)
        ends = [F.cross_entropy(logits[..., i], labels[:, i].abs().clamp(0, steps), ignore_index=steps) for i in (0, 1)]
        return (ends[0] + ends[1]) / 2

    model, x = Tagger(answer), torch.randn(7, 3, 4)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=7)
    check(compiled, model, (x, LABELS), model(x, LABELS)["loss"], compiled.step(x, LABELS))


@pytest.mark.parametrize("loss", MEANS)
def test_a_function_of_output_and_target(loss: Callable[..., Tensor]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss)
    for labels in (LABELS.clamp(min=0), LABELS, LABELS[:5].flip(0)):
        x = torch.randn(len(labels), 3, 4)
        check(compiled, model, (x, labels), loss(model(x), labels), compiled.step(x, labels))


def rooted(logits: Tensor, labels: Tensor) -> Tensor:
    return plain(logits, labels).sqrt()


def paired(logits: Tensor, labels: Tensor) -> Tensor:
    rows = logits.flatten(1)
    return F.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def confident(logits: Tensor, labels: Tensor) -> Tensor:
    sure = logits.softmax(-1)[..., 0]
    return (of_rows(logits, labels) * sure).sum() / sure.sum()


@pytest.mark.parametrize("loss", [rooted, paired, confident])
def test_what_is_no_mean_is_an_error_with_the_line(loss: Callable[..., Tensor]) -> None:
    x, labels = torch.randn(7, 3, 4), LABELS
    compiled = compile(Tagger(loss), schedule=gpipe(), stages=2, microbatches=3)
    with pytest.raises(ScheduleError, match=r"test_loss_means.py:\d+: .*neither a mean nor a sum over rows"):
        compiled.step(x, labels)
    own = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    compiled = compile(own, schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss)
    for rows in (7, 3):  # one for each micro-batch too
        with pytest.raises(ScheduleError, match=r"test_loss_means.py:\d+: .*neither .* give loss_weight="):
            compiled.step(x[:rows], labels[:rows])


MIXED: list[Callable[[Tensor, Tensor], Tensor]] = [
    emptied,
    lambda z, _: z.softmax(0).square().mean(),
    lambda z, _: z.transpose(0, 1).log_softmax(1)[..., 0].mean(),
    lambda z, _: z.flatten(0, 1).log_softmax(0)[:, 0].mean(),
    lambda z, _: z.cumsum(0).square().mean(),
    lambda z, _: (z * z.roll(1, 0)).mean(),
    lambda z, _: (z * z.flip(0)).mean(),
    lambda z, _: (z.sort(0).values * z).mean(),
    lambda z, _: (z * torch.cat([z[1:], z[:1]])).mean(),
    lambda z, _: z[1:].square().sum(),
    lambda z, labels: (z * z[labels[:, 2] * 0]).mean(),
    lambda z, _: z[..., 0].tril().sum(),
    lambda z, labels: of_rows(z.reshape(3, len(z), 3).softmax(0).view(-1, 3, 3), labels).mean(),
    lambda z, _: (F.layer_norm(z[:, 0, 0], (len(z),)) * z[:, 1, 1]).mean(),
    lambda z, _: (z.square() * torch.arange(len(z))[:, None, None]).mean(),
    lambda z, _: (z.square() + len(z)).mean(),
    lambda z, _: z.square().sum() / len(z) ** 0.5,
    lambda z, labels: of_rows(z, labels).sum() / labels.sum().item() ** 0.5,
    lambda z, labels: (of_rows(z, labels) * labels.double().softmax(0)).sum(),
    lambda z, labels: F.avg_pool1d(of_rows(z, labels)[:, 0][None, None], 3, 1, 1).square().mean(),
    lambda z, labels: F.conv1d(z[:, 0].T[None], torch.ones(1, 3, 3), padding=1).square().mean(),
    lambda z, labels: F.pad(z[:, 0].T, (1, -1)).square().mean(),
    lambda z, labels: F.interpolate(z[:, 0].T[None], size=len(z), mode="linear").square().mean(),
    lambda z, _: z.square().mean().clamp(max=len(z)),
    lambda z, _: z.square().mean() + len(z) ** 2,
]


APART: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda z, labels: F.avg_pool1d(z, 3, 1, 1).square().mean(),
    lambda z, labels: F.conv1d(z, torch.ones(1, 3, 1)).square().mean(),
    lambda z, labels: F.mse_loss(z.transpose(0, 1).sigmoid(), torch.ones(3, len(z), 3)),
    lambda z, labels: F.pad(z, (1, -1)).square().mean(),
    lambda z, labels: of_rows(z, labels).mean() * len(z) / 8 + z.square().sum(),
    lambda z, labels: of_rows(z, labels).sum() + len(z) * 0.5,
    # The labels meet no row, so each micro-batch gets all of them.
    lambda z, labels: (z.sum(0) / (labels.sum(0)[:, None] + 0.5)).mean(),
    lambda z, labels: (z.sum(0) / labels.count_nonzero(0)[:, None].clamp(min=1)).mean(),
]


@pytest.mark.parametrize("loss", alternate(APART))
def test_rows_one_by_one(loss: Callable[..., Tensor]) -> None:
    x, labels, model = torch.randn(6, 3, 4), LABELS[:6].clamp(min=0), Tagger(loss)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    check(compiled, model, (x, labels), model(x, labels)["loss"], compiled.step(x, labels))


@pytest.mark.parametrize("loss", alternate(MIXED))
def test_rows_that_depend_on_others_or_on_their_place_are_an_error(loss: Callable[..., Tensor]) -> None:
    x, labels = torch.randn(7, 3, 4), LABELS.clamp(min=0)
    compiled = compile(Tagger(loss), schedule=gpipe(), stages=2, microbatches=3)
    with pytest.raises(ScheduleError, match="neither a mean nor a sum over rows"):
        compiled.step(x, labels)


@pytest.mark.filterwarnings("ignore:std")
def test_a_loss_that_is_no_number_for_a_row_is_no_mean() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    compiled = compile(net, schedule=gpipe(), stages=2, microbatches=3, loss_fn=lambda y, _: y.std(0).mean())
    with pytest.raises(ScheduleError, match="neither a mean nor a sum over rows"):
        compiled.step(torch.randn(8, 4), torch.randn(8))


class StepsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.layer(x.transpose(0, 1))[0], target.transpose(0, 1))


def test_a_recurrent_layer_treats_rows_one_by_one() -> None:
    x, target, model = torch.randn(7, 3, 4), torch.randn(7, 3, 3), StepsFirst()
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=1, microbatches=3)
    check(compiled, model, (x, target), model(x, target), compiled.step(x, target))


def test_a_mean_times_a_count_of_nothing_is_an_error() -> None:
    def counted(logits: Tensor, labels: Tensor) -> Tensor:
        return of_rows(logits, labels).mean() * (labels < 0).double().mean()

    model = Tagger(counted)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=2)
    x, labels = torch.randn(4, 3, 4), LABELS[[0, 1, 4, 6]]
    check(compiled, model, (x, labels), model(x, labels)["loss"], compiled.step(x, labels))
    with pytest.raises(InputError, match="multiplied by a count, which is zero in micro-batch 1"):
        compiled.step(x, LABELS[[0, 1, 2, 3]])


class Layer(nn.Module):
    """A loss of what a layer of PyTorch's gives for the outputs [B, C]."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor] = lambda layer, y: layer(y)) -> None:
        super().__init__()
        self.layer, self.call = layer.requires_grad_(False), call

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.call(self.layer, y), target)


MIXING: list[tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = [
    (lambda: nn.Softmax(dim=0), lambda layer, y: layer(y)),
    (lambda: nn.LogSoftmax(0), lambda layer, y: layer(y)),
    (nn.Softmax2d, lambda layer, y: layer(y[:, :, None])[..., 0]),
    (lambda: nn.GRU(4, 4), lambda layer, y: layer(y[:, None])[0][:, 0]),
    (lambda: nn.MultiheadAttention(4, 2), lambda layer, y: layer(y[:, None], y[:, None], y[:, None])[0][:, 0]),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda layer, y: layer(y)),
    (lambda: nn.BatchNorm1d(4), lambda layer, y: layer(y)),
    (nn.Identity, lambda layer, y: F.batch_norm(y, None, None, training=True)),
    (nn.Identity, lambda layer, y: y[torch.arange(len(y) - 1, -1, -1)]),
    (nn.Identity, lambda layer, y: y.renorm(2, 1, 0.1)),
    (nn.Identity, lambda layer, y: y * (y > 0).long().unique(return_inverse=True)[1]),
]
ALIKE: list[tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = [
    (lambda: nn.Softmax(dim=1), lambda layer, y: layer(y)),
    (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU()), lambda layer, y: layer(y)),
    (lambda: nn.GRU(4, 4, batch_first=True), lambda layer, y: layer(y[:, None])[0][:, 0]),
    (lambda: nn.MultiheadAttention(4, 2, batch_first=True), lambda layer, y: layer(*[y[:, None]] * 3)[0][:, 0]),
    (lambda: nn.BatchNorm1d(4).eval(), lambda layer, y: layer(y)),
    (lambda: nn.PairwiseDistance(), lambda layer, y: layer(y, y.tanh())[:, None].expand(-1, 4)),
    (nn.Identity, lambda layer, y: y[torch.arange(len(y))]),
    (nn.Identity, lambda layer, y: torch.diag_embed(y).sum(-1)),
]


def of_layer(make: Callable[[], nn.Module], call: Callable[..., Tensor]) -> tuple[Any, nn.Module, nn.Module]:
    model, loss = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), Layer(make(), call)
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss)
    return compiled, model, loss


@pytest.mark.parametrize(("make", "call"), MIXING)
def test_what_mixes_rows_within_a_loss_is_an_error(make: Any, call: Any) -> None:
    compiled, *_ = of_layer(make, call)
    with pytest.raises(ScheduleError, match=r"test_loss_means.py:\d+: .*neither a mean nor a sum over rows"):
        compiled.step(torch.randn(7, 3), torch.randn(7, 4))


@pytest.mark.parametrize(("make", "call"), ALIKE)
def test_what_treats_rows_alike_within_a_loss_is_taken(make: Any, call: Any) -> None:
    compiled, model, loss = of_layer(make, call)
    x, target = torch.randn(7, 3), torch.randn(7, 4)
    check(compiled, model, (x, target), loss(model(x), target), compiled.step(x, target))


WHOLE = [pytest.param(name, "global", marks=pytest.mark.slow) for name in ("fsdp", "one_f_one_b")]


@pytest.mark.parametrize(("name", "data"), [("ddp", "local"), *WHOLE])
def test_labels_that_are_ignored_on_ranks(name: str, data: str) -> None:
    model = scripts.weighted()
    loss = model(*scripts.labelled())
    loss.backward()
    expected = support.gradients(model)
    for found, grads in run_ranks(scripts.ignoring, 2, name, data):
        assert found == pytest.approx(loss.item())
        support.same(grads, {name: grad for name, grad in expected.items() if name in grads})


@pytest.mark.slow
def test_a_rank_that_cannot_tell_what_counts() -> None:
    model, (x, target) = scripts.perceptron(), scripts.batch(0)
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    for found, grads in run_ranks(scripts.lone_row, 2):
        assert found == pytest.approx(loss.item())
        support.same(grads, support.gradients(model))
