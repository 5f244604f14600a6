"""Arguments that have as many rows as the batch: cut with it where the model reads them row by row, whole where each
row reads all of them, and an error that names them where neither shows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.common.stages import Stages
from bppsa.errors import PartitionError
from bppsa.schedule import gpipe
from tests.models import support as models
from tests.models.decoders import LLAMA, made
from tests.models.encoders import BERT
from tests.models.zoo import MODELS
from tests.workers import support

B, T, N = 6, 3, 5
Forward = Callable[..., Any]
Args = Sequence[Any]


class Model(nn.Module):
    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(N, N), nn.Linear(N, 4)
        self.function = function

    def forward(self, x: Tensor, one: Any = None, other: Any = None) -> Any:
        return self.function(self, x, *(value for value in (one, other) if value is not None))


def cut(forward: Forward, args: Args, stages: Any = 2) -> Stages:
    """With a flag for each of args, whether it has rows."""
    found = bppsa.partition(Model(forward), tuple(args), stages)
    return replace(found, by_rows=found.by_rows[: len(args)])


def loss_of(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output["loss"]


def at_once(model: nn.Module, args: Args, kwargs: dict[str, Any]) -> Tensor:
    """The loss of the whole batch; leaves gradients in `.grad`."""
    loss = loss_of(model(*args, **kwargs))
    loss.backward()
    return loss.detach()


def check(model: nn.Module, args: Args, rows: Sequence[bool], count: int = 3, **kwargs: Any) -> None:
    """Steps on the example, and on other numbers of two more rows."""
    compiled = bppsa.compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=count)
    for more in (0, 2):
        grown = [
            x[torch.arange(len(x) + more) % len(x)].flip(0) if yes else x for x, yes in zip(args, rows, strict=True)
        ]
        found = compiled.step(*(grown if more else args), **kwargs)
        support.close(found, at_once(model, grown if more else args, kwargs))
        support.same(support.gradients(compiled), support.gradients(model))
        for trained in (compiled, model):
            trained.zero_grad()


# ---- read row by row


def first(x: Tensor) -> Tensor:
    return torch.arange(len(x))


def masked(self: Model, x: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    h = torch.tanh(self.a(x)) * mask[first(x), :, None]
    return F.cross_entropy(self.b(h).flatten(0, 1), labels.flatten())


def not_all_counted(self: Model, x: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Words that are no target count for nothing: the loss is no mean over rows."""
    h = torch.tanh(self.a(x)) * mask[first(x), :, None]
    return F.cross_entropy(self.b(h).flatten(0, 1), labels.flatten().where(labels.flatten() > 0, -100))


def weighed(self: Model, x: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    h = self.b(torch.tanh(self.a(x)) * mask[first(x), :, None])
    return (h.square().mean((1, 2)) * weights[first(x), 0]).mean()


def summed(self: Model, x: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    return weighed(self, x, mask, weights) * len(x)


def with_outputs(self: Model, x: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """And what the mask holds, turned round."""
    h = self.b(torch.tanh(self.a(x)) * mask[first(x), :, None])
    return {"loss": F.cross_entropy(h.flatten(0, 1), labels.flatten()), "seen": mask.t().clone(), "words": h}


def steps_first(self: Model, x: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {name: y.transpose(0, 1) if y.dim() == 3 else y for name, y in with_outputs(self, x, mask, labels).items()}


def numbers(rows: int = B) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    mask = (torch.randn(rows, T, generator=g) > 0).double()
    return torch.randn(rows, T, N, generator=g, dtype=torch.float64), mask, torch.arange(rows * T).view(rows, T) % 4


READ = [masked, not_all_counted, weighed, with_outputs, steps_first]


@pytest.mark.parametrize("forward", READ)
def test_what_is_read_row_by_row_is_cut(forward: Forward) -> None:
    x, mask, labels = numbers()
    given = (x, mask, labels.double() if forward is weighed else labels)
    assert cut(forward, given).by_rows == (True, True, True)
    check(Model(forward), given, (True, True, True))


def test_a_sum_tells_too() -> None:
    x, mask, weights = numbers()
    assert cut(summed, (x, mask, weights.double())).by_rows == (True, True, True)


def sliced(self: Model, x: Tensor, mask: Tensor) -> Tensor:
    return (self.b(torch.tanh(self.a(x))) * mask[: len(x), :, None]).square().mean()


def of_lengths(self: Model, x: Tensor, lengths: Tensor) -> Tensor:
    counted = torch.arange(x.shape[1]) < lengths[first(x), None]
    return (self.b(torch.tanh(self.a(x))) * counted[..., None]).square().mean()


def handed_on(self: Model, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return self.b(torch.tanh(self.a(x))), mask * 2


def beside_a_mixed_loss(self: Model, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
    h = torch.tanh(self.a(x)) * mask[first(x), :, None]
    return {"loss": h.square().mean().log() + h.mean(0).abs().mean(), "h": h}


@pytest.mark.parametrize("forward", [sliced, of_lengths, handed_on, beside_a_mixed_loss])
def test_other_ways_to_read_by_rows(forward: Forward) -> None:
    x, mask, _ = numbers()
    assert cut(forward, (x, torch.arange(B) % 4 if forward is of_lengths else mask)).by_rows == (True, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_of_less_precision(dtype: torch.dtype) -> None:
    x, mask, labels = numbers()
    found = bppsa.partition(Model(masked).to(dtype), (x.to(dtype), mask.to(dtype), labels), 2)
    assert found.by_rows == (True, True, True)
    x, bank = torch.randn(2, 8, N).to(dtype)
    assert bppsa.partition(Model(nearest).to(dtype), (x, bank), 2).by_rows[:2] == (True, False)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("forward", [masked, with_outputs])
def test_examples_of_few_rows(forward: Forward, rows: int) -> None:
    assert cut(forward, numbers(rows)).by_rows == (True, True, True)


KINDS = [torch.float64, torch.float32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("value", [0, 1])
def test_an_example_whose_rows_are_alike(value: int, dtype: torch.dtype) -> None:
    """As where nothing is padded: each reading gives the same for it."""
    x, mask, labels = numbers()
    mask = torch.full_like(mask, value).to(dtype)
    assert cut(masked, (x, mask, labels)).by_rows == (True, True, True)
    assert cut(masked, (torch.ones_like(x), mask, labels)).by_rows == (True, True, True)


def test_modules_by_hand() -> None:
    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(N, N)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return torch.tanh(self.a(x)) * mask[first(x), :, None]

    model = nn.Sequential(Middle(), nn.Linear(N, 4), nn.Tanh())
    x, mask, _ = numbers()
    holder = nn.ModuleList(model)
    assert bppsa.partition(holder, (x, mask), list(model)).by_rows == (True, True)


# ---- read whole by each row


def scores(self: Model, x: Tensor, bank: Tensor) -> Tensor:
    return torch.tanh(self.a(x)) @ bank.T


def nearest(self: Model, x: Tensor, bank: Tensor) -> Tensor:
    return torch.logsumexp(scores(self, x, bank), 1).mean()


def mean_of_bank(self: Model, x: Tensor, bank: Tensor) -> Tensor:
    return scores(self, x, bank).square().mean()


def encoded(self: Model, x: Tensor, bank: Tensor) -> dict[str, Tensor]:
    keys = self.a(bank)
    found = torch.tanh(self.a(x)) @ keys.T
    return {"loss": torch.logsumexp(found, 1).mean(), "keys": keys, "scores": found}


def beside_labels(self: Model, x: Tensor, bank: Tensor, labels: Tensor) -> Tensor:
    """A row for each class; the labels are of the batch."""
    return F.cross_entropy(scores(self, x, bank), labels[first(x)], ignore_index=2)


@pytest.mark.parametrize("forward", [nearest, mean_of_bank, encoded])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_what_each_row_reads_whole_is_not_cut(forward: Forward, rows: int) -> None:
    x, bank = torch.randn(2, rows, N)
    assert cut(forward, (x, bank)).by_rows == (True, False)
    check(Model(forward), (x, bank), (True, False), 2)


def test_what_is_read_whole_beside_what_is_not() -> None:
    given = (*torch.randn(2, 8, N), torch.tensor([2, 0, 1, 3, 4, 2, 6, 7]))
    assert cut(beside_labels, given).by_rows == (True, False, True)
    check(Model(beside_labels), given, (True, False, True), 4)


def test_banks_whose_rows_are_alike() -> None:
    x = torch.randn(8, N)
    for bank in (torch.zeros(8, N), torch.ones(8, N)):
        assert cut(mean_of_bank, (x, bank)).by_rows == (True, False)
        assert cut(mean_of_bank, (torch.ones_like(x), bank)).by_rows == (True, False)


def over_steps(self: Model, x: Tensor, mask: Tensor) -> Tensor:
    return self.b(mask @ torch.tanh(self.a(x)))


def over_steps_with_loss(self: Model, x: Tensor, mask: Tensor) -> Tensor:
    return over_steps(self, x, mask + 0 * x[0, :, :1]).square().mean()


@pytest.mark.parametrize("forward", [over_steps, over_steps_with_loss])
def test_a_mask_over_as_many_steps_as_rows(forward: Forward) -> None:
    assert cut(forward, (torch.randn(B, B, N), torch.randn(B, B))).by_rows == (True, False)


def test_many_arguments() -> None:
    """Each other one is read whole."""

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(N, N)

        def forward(self, x: Tensor, *others: Tensor) -> Tensor:
            h = torch.tanh(self.a(x))
            for i, other in enumerate(others):
                h = h + (torch.tanh(h @ other.T) @ other if i % 2 else other[first(x)])
            return h.square().mean()

    found = bppsa.partition(Many(), tuple(torch.randn(7, 8, N)), 2)
    assert found.by_rows == (True, *((True, False) * 3))


def test_of_a_loss_alone_by_hand() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(N, N)

        def forward(self, x: Tensor, bank: Tensor) -> Tensor:
            return torch.logsumexp(torch.tanh(self.a(x)) @ bank.T, 1).mean()

    last = nn.ModuleList([Last()])
    assert bppsa.partition(last, tuple(torch.randn(2, 8, N)), list(last)).by_rows == (True, False)


# ---- neither shows


def mixed(self: Model, x: Tensor, other: Tensor) -> Tensor:
    """Rows see their mean, and so does the loss: no part of the batch gives what it gives in the whole."""
    h = torch.tanh(self.a(x)) * other[first(x)]
    return (h - h.mean(0)).square().mean().log()


def test_what_cannot_be_told_is_an_error_with_two_mends() -> None:
    x, other = torch.randn(2, B, N)
    with pytest.raises(PartitionError, match=r"argument one is a tensor \[6, 5\].* 7;.*assert len\(one\) == len\(x\)"):
        cut(mixed, (x, other))

    pairs = lambda self, x, other: F.cross_entropy(self.a(x) @ self.a(other).T, first(x))  # noqa: E731
    with pytest.raises(PartitionError, match=r"argument one .*cannot be told"):
        cut(pairs, (x, other))

    def said(self: Model, x: Tensor, other: Tensor) -> Tensor:
        assert len(other) == len(x)
        return mixed(self, x, other)

    assert cut(said, (x, other)).by_rows == (True, True)
    assert cut(lambda self, x, bank: mixed(self, x, x) * bank.mean(), (torch.randn(7, N), other)).by_rows == (
        True,
        False,
    )


def test_what_is_not_read_is_cut() -> None:
    x, other = torch.randn(2, B, N)
    assert cut(lambda self, x, other: self.b(torch.tanh(self.a(x))), (x, other)).by_rows == (True, True)


class Stateful(nn.Module):
    """x: [B, T, N]; state: [2, B, N], or a pair of these."""

    def __init__(self, kind: type[nn.RNNBase], first: bool = False) -> None:
        super().__init__()
        self.recurrent, self.b, self.first = kind(N, N, 2, batch_first=True), nn.Linear(N, 4), first

    def forward(self, x: Tensor, state: Any) -> Tensor:
        if self.first:
            state = state.movedim(0, 1)
        return self.b(torch.tanh(self.recurrent(x, state)[0]))


@pytest.mark.parametrize("pair", [False, True])
def test_rows_that_are_not_an_arguments_first_dimension(pair: bool) -> None:
    x, h = torch.randn(B, T, N), torch.randn(2, B, N)
    model = Stateful(nn.LSTM if pair else nn.GRU).double()
    given = (x, (h, h + 1) if pair else h)
    name = r"state\[0\]" if pair else "state"
    told = rf"argument {name} is a tensor \[2, 6, 5\] with the batch's rows in dimension 1.* as \[6, 2, 5\]"
    with pytest.raises(PartitionError, match=told):
        bppsa.partition(model, given, 2)


def test_a_dimension_as_long_as_the_batch_may_be_none_of_rows() -> None:
    x, h = torch.randn(B, T, N), torch.randn(2, B, N)
    assert bppsa.partition(Stateful(nn.GRU, first=True).double(), (x, h.movedim(1, 0)), 2).by_rows == (True, True)
    scaled = lambda self, x, one: self.b(torch.tanh(self.a(x))) * one.mean(-1)  # noqa: E731
    assert cut(scaled, (torch.randn(B, N), torch.randn(4, B))).by_rows == (True, False)


def test_a_model_without_memory_warns() -> None:
    with torch.device("meta"):
        model = Model(masked)
    with pytest.warns(RuntimeWarning, match=r"argument one .*another number of rows"):
        assert bppsa.partition(model, numbers(), 2).by_rows == (True, True, True)


# ---- models of transformers


def padded(left: bool) -> dict[str, Tensor]:
    """Rows of different lengths, filled up at one side; labels are -100 there."""
    ids = torch.randint(3, 31, (B, 7), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([7, 3, 5, 2, 6, 4])
    mask = (torch.arange(7) < lengths[:, None]).long()
    mask = mask.flip(1) if left else mask
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


@pytest.mark.parametrize("microbatches", [2, 3])
@pytest.mark.parametrize(
    ("name", "architecture", "sizes", "left"),
    [
        ("BertConfig", "BertForMaskedLM", BERT, False),
        ("LlamaConfig", "LlamaForCausalLM", LLAMA, True),
    ],
)
def test_padding_goes_with_the_rows(
    name: str, architecture: str, sizes: dict[str, Any], left: bool, microbatches: int
) -> None:
    models.skip_without(MODELS["bert"])
    model, given = made(name, architecture, **sizes)().double().train(), padded(left)
    compiled = bppsa.compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=microbatches)
    support.close(compiled.step(**given), at_once(model, (), given), 1e-6)
    support.same(support.gradients(compiled), support.gradients(model), 1e-10)
