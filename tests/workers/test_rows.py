"""Targets and arguments of another length than the batch: never repeated, always an error that names both sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.errors import BppsaError, InputError
from bppsa.schedule import blelloch, ddp
from tests.workers import support, zoo
from tests.workers.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("in_float64")
ROWS, FEW = 6, 3  # as many as a micro-batch of two has
SIZES = rf"\[{FEW}.*\b{ROWS} rows"


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))


def compiled_for(case: zoo.Case, loss_fn: Callable[..., Tensor], microbatches: int = 2) -> Any:
    return bppsa.compile(
        classifier(),
        schedule=case.schedule,
        stages=min(case.stages, 3),
        microbatches=microbatches,
        workers=case.workers,
        loss_fn=loss_fn,
    )


@pytest.mark.parametrize("name", ["naive", "gpipe", "one_f_one_b", "zero_bubble", "ddp", "fslpp"])
def test_a_target_of_another_length_is_no_target(name: str) -> None:
    compiled = compiled_for(zoo.CASES[name], nn.CrossEntropyLoss())
    x = torch.randn(ROWS, 4)
    with pytest.raises(InputError, match=SIZES):
        compiled.step(x, torch.randint(3, (FEW,)))
    assert torch.isfinite(compiled.step(x, torch.randint(3, (ROWS,))))
    with pytest.raises(InputError, match=SIZES):  # also after the loss was tried
        compiled.step(x, torch.randint(3, (FEW,)))


def of_pair(output: Tensor, target: Any) -> Tensor:
    return F.cross_entropy(output, target[0]) + F.mse_loss(output, target[1])


def of_dict(output: Tensor, target: Any) -> Tensor:
    return of_pair(output, (target["classes"], target["values"]))


def test_each_tensor_of_a_target_has_the_batchs_rows() -> None:
    classes, values, x = torch.randint(3, (ROWS,)), torch.randn(ROWS, 3), torch.randn(ROWS, 4)
    pair = compiled_for(zoo.CASES["gpipe"], of_pair)
    with pytest.raises(InputError, match=rf"target\[1\].*{SIZES}"):
        pair.step(x, (classes, values[:FEW]))
    named = compiled_for(zoo.CASES["gpipe"], of_dict)
    with pytest.raises(InputError, match=rf"target\['classes'\].*{SIZES}"):
        named.step(x, {"classes": classes[:FEW], "values": values})
    assert torch.isfinite(pair.step(x, (classes, values)))


def test_targets_of_tokens_have_rows_too() -> None:
    def of_tokens(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    model, x, target = classifier(), torch.randn(ROWS, 5, 4), torch.randint(3, (ROWS, 5))
    compiled = bppsa.compile(
        copy.deepcopy(model), schedule=zoo.CASES["gpipe"].schedule, stages=2, microbatches=2, loss_fn=of_tokens
    )
    support.close(compiled.step(x, target), of_tokens(model(x), target).detach())
    for wrong in (target[:FEW], target[:FEW].flatten(), target.flatten()):
        with pytest.raises(InputError, match=rf"\b{ROWS} rows"):
            compiled.step(x, wrong)


def test_an_array_is_no_tensor() -> None:
    compiled = compiled_for(zoo.CASES["gpipe"], lambda output, target: F.mse_loss(output, torch.as_tensor(target)))
    with pytest.raises(InputError, match=r"target is a ndarray.*give a tensor"):
        compiled.step(torch.randn(ROWS, 4), torch.randn(FEW, 3).numpy())


def test_numbers_hold_for_all_rows() -> None:
    def smoothed(output: Tensor, target: Any) -> Tensor:
        return F.cross_entropy(output, target[0], label_smoothing=target[1]) * target[2]

    model = classifier()
    compiled = bppsa.compile(
        copy.deepcopy(model), schedule=zoo.CASES["gpipe"].schedule, stages=2, microbatches=2, loss_fn=smoothed
    )
    x, target = torch.randn(ROWS, 4), (torch.randint(3, (ROWS,)), 0.1, torch.tensor(2.0))
    support.close(compiled.step(x, target), smoothed(model(x), target).detach())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = self.a(x)
        return self.b(torch.tanh(h if y is None else h + y))


@pytest.mark.parametrize("microbatches", [2, ROWS])
@pytest.mark.parametrize("rows", [FEW, ROWS])
def test_an_argument_that_holds_for_all_rows_does_not_become_one_of_rows(microbatches: int, rows: int) -> None:
    """The model was cut with a `y` that broadcasts."""
    compiled = bppsa.compile(
        Two(),
        schedule=zoo.CASES["gpipe"].schedule,
        stages=2,
        microbatches=microbatches,
        loss_fn=nn.MSELoss(),
        example_inputs=(torch.randn(ROWS, 4), torch.randn(1, 4)),
    )
    x, target = torch.randn(ROWS, 4), torch.randn(ROWS, 3)
    assert compiled.step(x, torch.randn(1, 4), target).isfinite()
    with pytest.raises(InputError, match=rf"\[{rows}, 4\].*\b{ROWS} rows"):
        compiled.step(x, torch.randn(rows, 4), target)
    with torch.no_grad(), pytest.raises(InputError, match=rf"\[{rows}, 4\].*\b{ROWS} rows"):
        compiled(x, torch.randn(rows, 4))


def test_arguments_of_rows_have_as_many() -> None:
    compiled = bppsa.compile(
        Two(), schedule=zoo.CASES["gpipe"].schedule, stages=2, microbatches=2, loss_fn=nn.MSELoss()
    )
    x, y = torch.randn(2, ROWS, 4)
    assert compiled(x, y).shape == (ROWS, 3)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), pytest.raises(InputError, match=rf"{ROWS} rows.*\[{FEW}, 4\]"):
            compiled(x, y[:FEW])
    with pytest.raises(InputError, match=rf"{ROWS} rows.*\[{FEW}, 4\]"):
        compiled.step(x, y[:FEW], torch.randn(ROWS, 3))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.b(mask @ torch.tanh(self.a(x)))


def test_a_mask_over_steps_may_grow_with_them() -> None:
    model = Masked()
    compiled = bppsa.compile(
        copy.deepcopy(model), schedule=zoo.CASES["gpipe"].schedule, stages=2, microbatches=ROWS, loss_fn=nn.MSELoss()
    )
    for steps in (5, 2, ROWS, 1):
        x, mask, target = torch.randn(ROWS, steps, 4), torch.randn(steps, steps), torch.randn(ROWS, steps, 3)
        support.close(compiled.step(x, mask, target), F.mse_loss(model(x, mask), target).detach())


def rows_of_another(rank: int) -> str:
    """Rank 1 brings a target of another length than its rows."""
    torch.set_default_dtype(torch.float64)
    x, y = torch.randn(ROWS, 4), torch.randn(ROWS, 3)
    compiled = bppsa.compile(
        Two(), schedule=ddp(), stages=2, microbatches=4, loss_fn=nn.MSELoss(), data="local", example_inputs=x
    )
    try:
        compiled.step(x, y[:FEW] if rank else y)
    except BppsaError as error:
        assert torch.isfinite(compiled.step(x, y))
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_with_a_target_of_another_length_is_named_on_all() -> None:
    for said, kind in zip(run_ranks(rows_of_another, 2), ("Stopped", "InputError"), strict=True):
        assert said.startswith(kind)
        assert f"target is a tensor [{FEW}, 3], and the batch has {ROWS} rows" in said


# ---- over time


class Steps(nn.Module):
    """last: whether it returns what is of the last step alone."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        self.inner, self.head, self.last = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3), last

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y = self.inner(x if scale is None else x * scale)[0]
        return self.head(y[:, -1] if self.last else y)


def over_time(model: nn.Module, loss_fn: Callable[..., Tensor] = F.mse_loss, microbatches: int = 2) -> Any:
    return bppsa.compile(model, schedule=blelloch(2), microbatches=microbatches, loss_fn=loss_fn)


@pytest.mark.parametrize("last", [False, True])
def test_over_time_a_target_has_the_batchs_rows(last: bool) -> None:
    compiled, x = over_time(Steps(last)), torch.randn(ROWS, 8, 4)
    target = torch.randn(ROWS, 3) if last else torch.randn(ROWS, 8, 3)
    for _ in range(2):
        with pytest.raises(InputError, match=SIZES):
            compiled.step(x, target[:FEW].clone())
        compiled.step(x, target)  # after which the loss is known


def test_over_time_a_target_of_other_steps_is_named() -> None:
    compiled, x, target = over_time(Steps()), torch.randn(ROWS, 8, 4), torch.randn(ROWS, 8, 3)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"\[{ROWS}, 4, 3\].*\b8 steps"):
            compiled.step(x, target[:, :4].clone())
        compiled.step(x, target)


def test_over_time_rows_may_come_later() -> None:
    """With one row it was not known which axis has them."""
    model = Steps(last=True)
    compiled = over_time(copy.deepcopy(model), F.cross_entropy)
    for rows in (1, ROWS, 1, 2):
        x, target = torch.randn(rows, 8, 4), torch.randint(3, (rows,))
        support.close(compiled.step(x, target), F.cross_entropy(model(x), target).detach())
        support.close(compiled(x), model(x))


@pytest.mark.parametrize("last", [False, True])
def test_over_time_all_outputs_come_back_where_the_example_had_one_row(last: bool) -> None:
    model = Steps(last)
    compiled = over_time(copy.deepcopy(model))
    with torch.no_grad():
        for rows in (1, ROWS):
            x = torch.randn(rows, 8, 4)
            support.close(compiled(x), model(x))


def test_over_time_an_argument_that_holds_for_all_rows_does_not_become_one_of_rows() -> None:
    compiled = over_time(Steps(), microbatches=ROWS)
    x, target = torch.randn(ROWS, 8, 4), torch.randn(ROWS, 8, 3)
    assert compiled.step(x, torch.randn(4), target).isfinite()
    for shape in ((FEW, 1, 4), (ROWS, 1, 4), (8, 4)):
        with pytest.raises(InputError, match=r"\[.*4\].*\[4\]"):
            compiled.step(x, torch.randn(shape), target)
