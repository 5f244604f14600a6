"""Attributes that a forward sets for itself in each call: their values go from stage to stage, and nothing is left."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa import compile, trainer
from bppsa.errors import PartitionError, WorkerError
from bppsa.fxpasses.partition import partition
from bppsa.schedule import Recipe, ddp, gpipe, zero_bubble
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class Gated(nn.Module):
    """Keeps the loss of its gate for the model, as layers of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.layer = nn.Linear(4, 2), nn.Linear(4, 4)
        self.balance: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        if self.training:
            self.balance = (shares**2).mean()
        self.seen = x.shape[1:]  # nothing was there before
        return self.layer(x).tanh() * shares[:, :1] + x


class Balanced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(3))
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        self.losses = []
        for layer in self.layers:
            x = layer(x)
            if self.training:
                self.losses.append(layer.balance)
        return (x, torch.stack(self.losses).sum()) if self.training else x


def loss_of(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output[0], target) + 0.1 * output[1]


def compiled_for(model: nn.Module, schedule: Recipe, **options: Any) -> Any:
    return compile(model, schedule=schedule, stages=2, microbatches=3, loss_fn=loss_of, **options)


@pytest.mark.parametrize("schedule", [ddp(), zero_bubble()])
def test_losses_that_layers_keep_for_the_model(schedule: Recipe) -> None:
    model = Balanced()
    reference = copy.deepcopy(model)
    compiled = compiled_for(model, schedule)
    for rows in (7, 5):
        x, target = torch.randn(rows, 4), torch.randn(rows, 4)
        expected = loss_of(reference(x), target)
        expected.backward()
        support.close(compiled.step(x, target).detach().as_subclass(Tensor), expected.detach())
    support.same(support.gradients(compiled), support.gradients(reference))
    compiled.eval()
    with torch.no_grad():
        support.close(compiled(x), reference.eval()(x))


def test_nothing_is_left_to_read() -> None:
    compiled = compiled_for(Balanced(), gpipe(), example_inputs=torch.randn(6, 4))
    layer = compiled.layers[1]
    for _ in range(2):
        for read in (float, lambda balance: torch.stack([balance])):
            with pytest.raises(
                PartitionError, match=r"layers\.1\.balance is set by the forward, .* let the model return"
            ):
                read(layer.balance)
        layer.balance = None  # as a loop does that starts anew
        compiled.step(torch.randn(6, 4), torch.randn(6, 4))
    assert isinstance(layer.balance, Tensor)  # so that nobody who asks passes it over
    assert repr(pickle.loads(pickle.dumps(layer)).balance) == repr(copy.deepcopy(layer).balance) == repr(layer.balance)


@pytest.mark.parametrize("begin", ["training", "evaluation"])
def test_a_loss_that_reads_one(begin: str) -> None:
    """Of the user's own model, which is marked in each call: what sets it may come with another mode."""
    model = Balanced()
    for layer in model.layers:
        layer.balance = torch.zeros(())

    def reading(output: Any, target: Tensor) -> Tensor:
        return F.mse_loss(output[0], target) + model.layers[0].balance

    compiled = compile(model, schedule=gpipe(), stages=2, microbatches=3, loss_fn=reading)
    if begin == "evaluation":
        with torch.no_grad():
            compiled.eval()(torch.randn(6, 4))
        compiled.train()
    with pytest.raises(WorkerError, match=r"layers\.0\.balance is set by the forward"):
        compiled.step(torch.randn(6, 4), torch.randn(6, 4))


def adds_the_last(self: Any, x: Tensor) -> Tensor:
    x = x if self.last is None else x + self.last
    self.last = x.detach().mean()
    return x


def doubles_from_then_on(self: Any, x: Tensor) -> Tensor:
    y = 2 * x if isinstance(self.last, Tensor) else x
    self.last = x
    return y


def doubles_unless_first(self: Any, x: Tensor) -> Tensor:
    y = x if self.last is None else 2 * x
    self.last = x
    return y


def prepares(self: Any, x: Tensor) -> Tensor:
    if self.last is None:
        self.last = torch.ones(4, device=x.device)
    return x * self.last


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("forward", [adds_the_last, doubles_from_then_on, doubles_unless_first, prepares])
def test_what_the_next_call_reads_is_refused(forward: Any, device: str) -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Tensor | None = None
            self.layer = Gated()

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, self.layer(x))

    model = Remembering().to(device)
    with pytest.raises(PartitionError, match=r"test_transient.py:\d+: .*the forward changes last, which other stages"):
        partition(model, torch.randn(3, 4, device=device), 2)
    assert model.last is None
    assert model.layer.balance is None


def test_a_trainer_has_it_under_its_own_name() -> None:
    class Root(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            self.step = super().forward(x)  # a name that the compiled model shows of its trainer
            return self.step, self.step.mean()

    compiled = compiled_for(Root(nn.Linear(4, 4), nn.Linear(4, 4)), gpipe(), example_inputs=torch.randn(6, 4))
    assert trainer(compiled).step(torch.randn(6, 4), torch.randn(6, 4)).isfinite()
    with pytest.raises(PartitionError, match="step is set by the forward"):
        compiled.step + 1
