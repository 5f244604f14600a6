"""Losses by an autograd.Function of the user's, of which no graph tells what it does, nor what it does backward."""

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
from bppsa.errors import ScheduleError, WorkerError
from bppsa.schedule import gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class OfAll(torch.autograd.Function):
    """A mean over rows."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(y, target)
        return (y - target).square().mean()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        y, target = ctx.saved_tensors
        return g * 2 * (y - target) / y.numel(), None


class OfRows(torch.autograd.Function):
    """A number for each row."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(y, target)
        return (y - target).square().mean(1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        y, target = ctx.saved_tensors
        return g[:, None] * 2 * (y - target) / y.shape[1], None


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g - g.mean(0)


class Backward(torch.autograd.Function):
    """What it is given, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.change(g), None


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda y, target: F.mse_loss(Backward.apply(y, change), target)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 4), torch.randn(7, 3)


def scheduled(model: nn.Module, loss_fn: Any) -> Any:
    return compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3, loss_fn=loss_fn)


TAKEN: list[Callable[..., Tensor]] = [
    OfAll.apply,
    lambda y, target: OfAll.apply(y, target) + F.mse_loss(y, target),
    lambda y, target: OfRows.apply(y, target).mean(),
    lambda y, target: OfRows.apply(y, target).sum(),
    lambda y, target: OfRows.apply(y.flatten()[:, None], target.flatten()[:, None]).mean(),
    changed(lambda g: -0.5 * g),
    changed(lambda g: g.clamp(-0.01, 0.01)),
]


@pytest.mark.parametrize("loss_fn", TAKEN)
def test_a_mean_or_a_sum_by_a_function_is_one(loss_fn: Callable[..., Tensor]) -> None:
    model, (x, target) = perceptron(), batch()
    compiled = scheduled(model, loss_fn)
    loss = loss_fn(model(x), target)
    loss.backward()
    support.close(compiled.step(x, target), loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))


centred = Centred.apply  # looked up before it is traced


@pytest.mark.parametrize("function", [centred, partial(centred)])
def test_a_function_bound_earlier_is_found_out(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(WorkerError, match="the gradient that loss_fn gives its output"):
        scheduled(perceptron(), lambda y, target: F.mse_loss(function(y), target)).step(*batch())


def clipped(g: Tensor) -> Tensor:
    return g * (1e-2 / g.norm()).clamp(max=1)


@pytest.mark.parametrize("change", [lambda g: g * len(g), lambda g: g / g.norm(), clipped, lambda g: g.flip(0)])
def test_a_gradient_that_mixes_rows_is_an_error(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(WorkerError, match=r"the gradient that loss_fn gives its output, .* give loss_weight="):
        scheduled(perceptron(), changed(change)).step(*batch())


class Balanced(torch.autograd.Function):
    """Counts how many rows are of a row's class, the first two classes aside."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, classes: Tensor) -> Tensor:
        ctx.save_for_backward(classes)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (classes,) = ctx.saved_tensors
        count = torch.bincount(classes, minlength=9).clamp(min=1)
        count[:2] = 1
        return g / count[classes][:, None], None


def balanced(y: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(Balanced.apply(y, classes), classes)


def of(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda y, classes: 100 * F.cross_entropy(Backward.apply(y, change), classes, reduction="sum")


REAL = [balanced, of(lambda g: g * 2 if len(g) > 5 else g), of(lambda g: g * (200 / g.norm()).clamp(max=1))]


@pytest.mark.parametrize("loss_fn", REAL)
def test_what_made_up_numbers_do_not_show_real_ones_do(loss_fn: Callable[..., Tensor]) -> None:
    """Classes beyond the first two, more rows, and gradients whose norm is above a limit for the whole batch alone."""
    head = nn.Linear(5, 5).requires_grad_(False)
    model = nn.Sequential(nn.Linear(4, 5), head)
    x, classes = torch.randn(9, 4), torch.tensor([2, 2, 2, 3, 3, 2, 2, 2, 2])
    with pytest.raises(WorkerError, match=r"the gradient that loss_fn gives its output, for the 9 rows"):
        scheduled(model, loss_fn).step(x, classes)


class InPlace(torch.autograd.Function):
    """Makes its gradient in the place of what it is given, as fused losses do."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, target: Tensor) -> Tensor:
        loss = (y - target).square().mean()
        y.detach().sub_(target).mul_(2 / y.numel())
        ctx.save_for_backward(y.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.saved_tensors[0], None


def test_a_function_may_make_its_gradient_in_place() -> None:
    model, (x, target) = perceptron(), batch()
    compiled = scheduled(model, InPlace.apply)
    F.mse_loss(model(x), target).backward()
    compiled.step(x, target)
    support.same(support.gradients(compiled), support.gradients(model))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return clipped(g)


def untraced(y: Tensor, target: Tensor) -> Tensor:
    """With a term that is zero, and has a gradient."""
    return F.mse_loss(y, target) + ((y - y.detach()).sum() if float(target.sum()) < 1e9 else 0)


def test_a_gradient_that_no_value_shows_is_found_out() -> None:
    with pytest.raises(WorkerError, match="the gradient that loss_fn gives its output"):
        scheduled(perceptron(), untraced).step(*batch())


class Own(nn.Module):
    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.net, self.loss = perceptron(), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.net(x), target)


def test_a_model_that_returns_its_loss_has_one_of_each_row() -> None:
    x, target = batch()
    model = Own(lambda y, target: OfRows.apply(y, target).mean())
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=3)
    loss = model(x, target)
    loss.backward()
    support.close(compiled.step(x, target), loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    for other in (lambda y, target: OfAll.apply(y, target), lambda y, target: F.mse_loss(Clipped.apply(y), target)):
        compiled = compile(Own(other), schedule=gpipe(), stages=2, microbatches=3)
        with pytest.raises(
            ScheduleError, match=r"test_loss_own_gradient.py:\d+: .*give a loss of each row as loss_fn="
        ):
            compiled.step(x, target)
