"""Backwards that the user wrote are kept: custom autograd Functions, and layers that bppsa has rewritten."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import bppsa
from bppsa.schedule import Recipe, fsdp, lpp, zero_bubble
from tests.workers import support
from tests.workers.partition.support import ROWS, WIDTH, Batch, Model, check, check_or_refused, refused

# Each has a backward that is not the derivative of its forward: where that is lost, numbers differ.


class Reversed(Function):
    """Has a number and a flag among its arguments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, on: bool) -> Tensor:
        ctx.scale = scale if on else 1.0
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return -ctx.scale * g, None, None


class Rounded(Function):
    """In the style with a context set up apart."""

    @staticmethod
    def forward(x: Tensor, step: float) -> Tensor:
        return (x / step).round() * step

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        x, output = ctx.saved_tensors
        return g * (1 + (x - output).abs()), None


class Split(Function):
    """Has several outputs, one of which has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small, best = x.tanh(), x.argmax(-1)
        ctx.mark_non_differentiable(best)
        ctx.save_for_backward(x)
        return small, x * 3, best

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor, _: Tensor) -> Tensor:
        return a * 0.5 + b * ctx.saved_tensors[0].cos()


class Asking(Function):
    """Gives other gradients where one of its arguments is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad
        factor = 2 if of_weight else 3
        return g * weight * factor if of_x else None, (g * x).sum(0) * (5 if of_x else 7) if of_weight else None


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 5


class Optional(Function):
    """Has None among its arguments, and a weight that it is not given through a layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor | None, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x @ weight if shift is None else x @ weight + shift

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, Tensor]:
        (weight,) = ctx.saved_tensors
        return g @ weight, None, torch.full_like(weight, float(g.detach().sum()))


def reversed_(self: Model, x: Tensor) -> Tensor:
    return Reversed.apply(x, 0.5, True) + Reversed.apply(x, 0.5, False)


def rounded(self: Model, x: Tensor) -> Tensor:
    return Rounded.apply(x, 0.25)


def split(self: Model, x: Tensor) -> Tensor:
    small, large, best = Split.apply(x)
    return small + large * best[:, None]


def one_of_several(self: Model, x: Tensor) -> Tensor:
    return Split.apply(x)[1]


def asking(self: Model, x: Tensor) -> Tensor:
    return Asking.apply(x, self.second.bias)


def optional(self: Model, x: Tensor) -> Tensor:
    return Optional.apply(x, None, self.second.weight)


rounding, reversing = Rounded.apply, Reversed.apply  # looked up before the model is cut


def bound(self: Model, x: Tensor) -> Tensor:
    return rounding(x, 0.25) + partial(reversing, x)(0.5, True)


def without_gradients(self: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = Reversed.apply(x, 0.5, True)
    return x * scale


FUNCTIONS = (reversed_, rounded, split, one_of_several, asking, optional, bound, without_gradients)
SCHEDULES = (zero_bubble(), lpp(G=2), fsdp())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_users_backward_is_run(function: Any, schedule: Recipe) -> None:
    check(Model(function), schedule=schedule)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_function_knows_what_is_frozen(stages: int) -> None:
    model = Model(asking)
    model.second.bias.requires_grad_(False)
    check(model, stages=stages)


class Mapped(Function):
    """Is given functions, and an object."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.backward = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.backward(g), None, None


def tripled(g: Tensor) -> Tensor:
    return g * 3


def mapped(self: Model, x: Tensor) -> Tensor:
    factor = 2.0
    return Mapped.apply(Mapped.apply(x, torch.tanh, tripled), nn.functional.relu, lambda g: g * factor)


def of_this_forward(self: Model, x: Tensor) -> Tensor:
    scale = x.abs().amax()
    return Mapped.apply(x, torch.tanh, lambda g: g * scale)


def test_functions_that_are_arguments_of_a_function() -> None:
    check(Model(mapped))
    refused(
        Model(of_this_forward), r"test_functions\.py:\d+: .*: Mapped\.apply is given <function .*attribute of a module"
    )


class First(nn.Module):
    """The Function is given the batch itself, which needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(Asking.apply(x, self.scale))


@pytest.mark.parametrize("wanted", [False, True])
def test_a_function_knows_whether_the_batch_needs_a_gradient(wanted: bool) -> None:
    model, x = First(), torch.randn(ROWS, WIDTH, requires_grad=wanted)
    check(model, Batch((x,)))


def test_a_function_that_writes_its_argument() -> None:
    def in_place(self: Model, x: Tensor) -> Tensor:
        return InPlace.apply(x * 1)

    check_or_refused(Model(in_place), r"test_functions\.py:\d+.*InPlace\.apply")


class Shared(nn.Module):
    """A layer with a Function is called twice, in training and in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Model(rounded), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.outer(self.inner(x)))


def test_a_layer_with_a_function_is_called_twice() -> None:
    model = Shared()
    compiled = check(model, stages=3)
    x = torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(x), model.eval()(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.upper(self.lower(x)[0])[0])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_recurrent_layers_that_are_compiled_already(schedule: Recipe) -> None:
    model = Recurrent()
    fast, given = bppsa.compile(copy.deepcopy(model)), Batch((torch.randn(ROWS, 5, WIDTH),))
    compiled = bppsa.compile(fast, schedule=schedule, stages=3, microbatches=2, loss_fn=nn.MSELoss())
    target = torch.randn(ROWS, 5, WIDTH)
    for _ in range(2):
        loss = compiled.step(*given.args, target)
        expected = nn.functional.mse_loss(model(*given.args), target)
        expected.backward()
        support.close(loss, expected.detach())
        support.same(support.gradients(compiled), support.gradients(model))


def test_rewritten_layers_stay_what_they_are_in_a_cut() -> None:
    """The generated kernels are what runs: the stage holds the very layer."""
    fast = bppsa.compile(Recurrent())
    cut = bppsa.partition(fast, torch.randn(ROWS, 5, WIDTH), 3)
    held = {module for stage in cut.stages for module in stage.module.modules()}
    assert {fast.lower, fast.upper} <= held
