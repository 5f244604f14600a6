"""Steps that are called otherwise than the example: other numbers, lengths, rows and ways to give an argument."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import ArgumentError, BppsaError, InputError, StrategyError
from bppsa.schedule import fsdp, lpp, zero_bubble
from tests.models.case import of_all
from tests.workers import support
from tests.workers.partition.support import (
    WIDTH,
    Batch,
    batch,
    check,
    check_step,
    compiled_for,
    error_of_step,
    place,
)
from tests.workers.ranks import run_ranks


class Scaled(nn.Module):
    """A number, a flag and a name among its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, scale: float = 1.0, repeat: int = 1, deep: bool = True, act: str = "tanh") -> Tensor:
        y = self.first(x) * scale
        for _ in range(repeat):
            y = getattr(torch, act)(y)
        return self.second(y) if deep else y


X = {"scale": 0.5, "repeat": 2}


@pytest.mark.parametrize(("name", "other"), [("scale", 0.25), ("repeat", 3), ("deep", False), ("act", "sin")])
def test_other_numbers_than_the_examples(name: str, other: object) -> None:
    """They give what the model gives, or an error names them."""
    model, (x,) = Scaled(), batch().args
    compiled = bppsa.compile(copy.deepcopy(model), schedule=zero_bubble(), stages=2, microbatches=2, loss_fn=of_all)
    for _ in range(2):
        check_step(compiled, model, Batch((x,), X))
    error = error_of_step(compiled, model, Batch((x,), {**X, name: other}))
    assert error is None or name in str(error)
    model.zero_grad(), compiled.zero_grad()
    check_step(compiled, model, Batch((x,), X))  # and the next step works


class Attention(nn.Module):
    """Words with places of their own, of which there may be up to nine."""

    def __init__(self, most: int = 9) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(9, 8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)
        self.most = most

    def forward(self, tokens: Tensor) -> Tensor:
        rows, steps = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(steps))
        q, k, v = self.qkv(x).view(rows, steps, 2, 12).transpose(1, 2).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, steps, 8))
        if steps > self.most:
            x = x.cumsum(1)
        return self.head(x)


def words(rows: int, steps: int) -> Batch:
    return Batch((torch.randint(11, (rows, steps)),))


@pytest.mark.parametrize("most", [9, 5])
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_texts_of_another_length_than_the_examples(steps: int, most: int) -> None:
    """They are trained on as the model is, or an error names the argument and its dimension; where the forward takes
    another branch for them, it may name the line."""
    model, example, other = Attention(most), words(6, 7), words(6, steps)
    compiled = compiled_for(copy.deepcopy(model), example)
    check_step(compiled, model, example)
    error = error_of_step(compiled, model, other)
    if isinstance(error, InputError):
        assert all(part in str(error) for part in ("tokens", "dimension 1", str(steps), "7"))
    elif error is not None:
        assert re.search(place(Attention.forward, "if steps > self.most"), str(error)), str(error)
    model.zero_grad(), compiled.zero_grad()
    check_step(compiled, model, example)


@pytest.mark.parametrize("schedule", [zero_bubble(), lpp(G=2), fsdp()], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("rows", [(6, 1, 7), (1, 6, 2), (2, 3, 1), (4, 8, 5)])
def test_batches_of_any_size(rows: tuple[int, ...], schedule: Any) -> None:
    """Also where the example has one row, as many rows as micro-batches, or as many as a row has values."""
    check(Scaled(), *map(batch, rows), schedule=schedule)


def test_texts_of_one_row() -> None:
    check(Attention(), words(1, 7), words(5, 7), words(7, 7))


class Pooled(nn.Sequential):
    """Which images come out as two numbers is more than sympy can tell."""

    def __init__(self) -> None:
        pools = (nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2))
        super().__init__(nn.Conv2d(1, 2, 3, 2), *pools, nn.Flatten(), nn.Linear(2, WIDTH))


def test_images_whose_sizes_nobody_can_solve() -> None:
    """A batch may have other rows, and the error of another size tells what it was cut for."""
    model = Pooled()
    compiled = check(model, batch(6, 1, 16, 16), batch(3, 1, 16, 16))
    assert re.search(r"shape\[2\] is 18, .* for 16", str(error_of_step(compiled, model, batch(6, 1, 18, 18))))


class Averaged(nn.Module):
    """By windows as long as a part of the text: of a text of one word there is no half."""

    def __init__(self, parts: Callable[[int], int]) -> None:
        super().__init__()
        self.first, self.second, self.parts = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), parts

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * (x.shape[1] // self.parts(x.shape[1])))


def test_a_text_that_is_too_short_for_the_model() -> None:
    """What the model cannot do for a text of one word, it need not do to be cut."""
    model = Averaged(lambda steps: steps // 2)
    compiled = check(model, batch(6, 6, WIDTH), batch(6, 9, WIDTH))
    assert error_of_step(compiled, model, batch(6, 4, WIDTH)) is None
    with pytest.raises(BppsaError):
        compiled.step(*batch(6, 1, WIDTH).args, batch(6).target)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *others: Tensor, shift: Tensor | None = None, **more: Any) -> Tensor:
        y = torch.tanh(self.first(x) + sum(others))
        y = y if shift is None else y + shift
        return self.second(y + sum(len(name) * value["by"] for name, value in more.items()))


class InOrder(Two):
    """Reads its keywords in the order that they are given in."""

    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        y = self.first(x)
        for value in more.values():
            y = torch.tanh(y * value)
        return self.second(y)


def tensors(count: int, rows: int = 6) -> list[Tensor]:
    return list(torch.randn(count, rows, WIDTH))


def calls() -> list[tuple[nn.Module, Batch]]:
    x, y, z = tensors(3)
    return [
        (Two(), Batch((), {"x": x})),
        (Two(), Batch((x,), {"shift": y})),
        (Two(), Batch((x, y, z), {"shift": z})),
        (Two(), Batch((x,), {"late": {"by": y}, "early": {"by": z}})),
        (Scaled(), Batch((x, 0.5), {"repeat": 2})),
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("at_once", [False, True])
def test_arguments_by_keyword(number: int, at_once: bool) -> None:
    model, given = calls()[number]
    if at_once:
        compiled = compiled_for(copy.deepcopy(model), given)
    else:
        compiled = bppsa.compile(copy.deepcopy(model), schedule=zero_bubble(), stages=2, microbatches=2, loss_fn=of_all)
    for _ in range(2):
        check_step(compiled, model, given)
    backwards = Batch(given.args, dict(reversed(given.kwargs.items())))
    error = error_of_step(compiled, model, backwards)
    assert error is None or "called with arguments" in str(error)  # of **kwargs, whose order counts
    with torch.no_grad():
        found, expected = compiled.eval()(*given.args, **given.kwargs), model.eval()(*given.args, **given.kwargs)
    support.close(found, expected)


def test_keywords_in_the_order_of_the_call() -> None:
    """That of the example is the model's; another is too, or is an error."""
    model, (x, y, z) = InOrder(), tensors(3)
    compiled = bppsa.compile(copy.deepcopy(model), schedule=zero_bubble(), stages=2, microbatches=2, loss_fn=of_all)
    for _ in range(2):
        check_step(compiled, model, Batch((x,), {"late": y, "early": z}))
    error = error_of_step(compiled, model, Batch((x,), {"early": z, "late": y}))
    assert error is None or "early" in str(error)


def test_an_argument_may_be_given_by_place_and_by_keyword() -> None:
    model, (x, y) = Scaled(), tensors(2)
    compiled = compiled_for(copy.deepcopy(model), Batch((), {"x": x, "scale": 0.5}))
    for given in (Batch((y, 0.5)), Batch((y,), {"scale": 0.5}), Batch((), {"scale": 0.5, "x": y})):
        check_step(compiled, model, given)


def test_keywords_of_an_example_that_the_model_does_not_take() -> None:
    with pytest.raises(ArgumentError, match=r"example_.*does not|unexpected keyword argument 'scales'"):
        compiled_for(Scaled(), Batch(batch().args, {"scales": 0.5}))


def test_keywords_of_an_example_without_a_schedule() -> None:
    """An option that says nothing is an error, as example_inputs is."""
    with pytest.raises(StrategyError, match="example_kwargs"):
        bppsa.compile(Scaled(), example_kwargs={"scale": 0.5})


def test_a_cut_for_keywords() -> None:
    (x,) = batch().args
    cut = bppsa.partition(Scaled(), (), 2, example_kwargs={"x": x, "scale": 0.5})
    assert len(cut) == 2


def on_a_rank(rank: int) -> tuple[Tensor, dict[str, Tensor | None]]:
    with support.float64():
        torch.manual_seed(0)
        model, (x, y, z) = Two(), tensors(3)
        given = Batch((x,), {"shift": y, "late": {"by": z}})
        compiled = compiled_for(model, given, lpp(2, 1), 3)
        loss = compiled.step(*given.args, given.target, **given.kwargs)
    return loss, support.gradients(compiled)


def test_ranks_are_given_keywords_of_the_example() -> None:
    torch.manual_seed(0)
    model, (x, y, z) = Two(), tensors(3)
    given = Batch((x,), {"shift": y, "late": {"by": z}})
    expected = of_all(model(*given.args, **given.kwargs), given.target)
    expected.backward()
    whole = support.gradients(model)
    for loss, found in run_ranks(on_a_rank, 2):
        support.close(loss, expected.detach())
        support.same(found, {name: whole[name] for name in found})
