"""Losses that change state: what a loss does once a step must not be done once a micro-batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile
from bppsa.errors import ScheduleError
from bppsa.schedule import gpipe

pytestmark = pytest.mark.usefixtures("in_float64")


class Annealed(nn.Module):
    """rule: gives the loss of the module, whose buffers are `step` and `steps`, outputs and classes."""

    def __init__(self, rule: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.long))
        self.rule, self.calls = rule, 0

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return self.rule(self, y, target)


def unread(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.step += 1
    return F.cross_entropy(y, target)


def read(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.step += 1
    return F.cross_entropy(y, target) * own.step


def copied(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.step.add_(1)
    return F.cross_entropy(y, target) + (own.step.clone() / 100).clamp(max=1.0) * y.square().mean()


def asked(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.step += 1
    return F.cross_entropy(y, target) * own.step.item()


def through_a_view(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.steps[1] += 1
    return F.cross_entropy(y, target)


def of_python(own: nn.Module, y: Tensor, target: Tensor) -> Tensor:
    own.calls += 1
    return F.cross_entropy(y, target) * own.calls


CALLS = [0]


def outside(y: Tensor, target: Tensor) -> Tensor:
    CALLS[0] += 1
    return F.cross_entropy(y, target) * CALLS[0]


class Counting:
    calls = 0

    def __call__(self, y: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(y, target) * self.calls


def step_of(loss_fn: Callable[..., Tensor], rows: int = 8) -> Tensor:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 5))
    compiled = compile(copy.deepcopy(model), schedule=gpipe(), stages=2, microbatches=4, loss_fn=loss_fn)
    return compiled.step(torch.randn(rows, 4), torch.randint(5, (rows,)))


@pytest.mark.parametrize(
    ("loss_fn", "what"),
    [
        *((Annealed(rule), "its buffer step ") for rule in (unread, read, copied, asked)),
        (Annealed(through_a_view), "its buffer steps "),
        (Annealed(of_python), "calls "),
        (outside, "the global name CALLS "),
        (Counting(), "itself "),
    ],
)
def test_a_loss_that_changes_state_is_an_error(loss_fn: Callable[..., Tensor], what: str) -> None:
    match = rf"test_loss_state.py:\d+: .*loss_fn changes {what}once a micro-batch, .* after `optimizer.step\(\)`"
    with pytest.raises(ScheduleError, match=match):
        step_of(loss_fn)
    if isinstance(loss_fn, Annealed):
        assert not loss_fn.step.any()
        assert not loss_fn.steps.any()


def test_what_a_loss_makes_itself_may_change() -> None:
    def summed(y: Tensor, target: Tensor) -> Tensor:
        total = torch.tensor(0.0)
        total += F.cross_entropy(y, target)
        return total

    assert step_of(summed).isfinite()
