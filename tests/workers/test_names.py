"""A scheduled model whose children, Parameters, buffers, attributes and methods are called as ours are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bppsa
from bppsa.errors import ArgumentError, StrategyError
from bppsa.schedule import blelloch, ddp, gpipe
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")
NAMES = (
    *("stages", "step", "timeline", "begin", "report", "measured", "predicted", "clip_grad_norm_", "full_state_dict"),
    *("settings", "given", "names", "model", "outputs", "schedule", "trainer"),
    *("_settings", "_begin", "_training", "_names", "_started", "_outputs", "_cut"),
)


class Named(nn.Module):
    """As timm's ConvNeXt, whose blocks are in `stages`; all four kinds of tensors and modules have a name of ours."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4)))
        self.inner, self.head = nn.Module(), nn.Linear(4, 3)
        self.inner.register_buffer(name, torch.ones(4))
        setattr(self.head, name, nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        x = getattr(self, self.name)(x) * getattr(self.inner, self.name)
        return self.head(x) * getattr(self.head, self.name)


def check_step(model: nn.Module, schedule: Any, x: Tensor, target: Tensor, stages: int | None = 2) -> Any:
    """One micro-batch, as batch norm takes its statistics over a micro-batch."""
    compiled = bppsa.compile(copy.deepcopy(model), schedule=schedule, stages=stages, microbatches=1, loss_fn=F.mse_loss)
    loss = F.mse_loss(model(x), target)
    loss.backward()
    support.close(bppsa.trainer(compiled).step(x, target), loss.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    assert list(compiled.state_dict()) == list(model.state_dict())
    support.close(compiled.state_dict(), model.state_dict())
    support.close(compiled(x), model(x))
    return compiled


@pytest.mark.parametrize("name", NAMES)
def test_a_child_may_have_any_name(name: str) -> None:
    model, x, target = Named(name), torch.randn(6, 4), torch.randn(6, 3)
    compiled = check_step(model, gpipe(), x, target)
    assert getattr(compiled, name) is compiled.get_submodule(name)
    assert isinstance(getattr(compiled, name), nn.Sequential)
    trainer = bppsa.trainer(compiled)
    assert len(trainer.stages) == 2
    assert trainer.measured.makespan > 0
    assert trainer.predicted.makespan > 0
    assert trainer.clip_grad_norm_(1.0) > 0
    assert list(trainer.full_state_dict()) == list(model.state_dict())
    compiled.load_state_dict(model.state_dict())
    assert isinstance(bppsa.report(compiled), bppsa.Report)


class Methods(nn.Sequential):
    """Attributes and methods of names of ours."""

    measured, timeline = "the user's", property(lambda self: "the user's")

    def step(self) -> str:
        return "the user's"

    def report(self) -> str:
        return "the user's"


def test_attributes_and_methods_are_the_users() -> None:
    model = Methods(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model.predicted = "the user's"
    compiled = check_step(model, ddp(), torch.randn(6, 4), torch.randn(6, 3))
    assert compiled.step() == compiled.report() == compiled.measured == compiled.timeline == "the user's"
    assert compiled.predicted == "the user's"
    assert len(compiled.stages) == 2  # whose name is free
    assert isinstance(bppsa.trainer(copy.deepcopy(compiled)).step(torch.randn(6, 4), torch.randn(6, 3)), Tensor)


def test_free_names_are_ours() -> None:
    compiled = bppsa.compile(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), schedule=gpipe(), stages=2, microbatches=2, loss_fn=F.mse_loss
    )
    compiled.step(torch.randn(6, 4), torch.randn(6, 3))
    trainer = bppsa.trainer(compiled)
    assert compiled.stages is trainer.stages
    assert compiled.measured is trainer.measured
    assert compiled.report is bppsa.report(compiled)
    with pytest.raises(AttributeError, match="nothing"):
        compiled.nothing  # noqa: B018


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages, self.step = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.stages(x)[0])


def test_over_time_too() -> None:
    check_step(Layers(), blelloch(2), torch.randn(4, 8, 4), torch.randn(4, 8, 3), stages=None)


def test_only_a_scheduled_model_has_a_trainer() -> None:
    for other in (nn.Linear(2, 2), bppsa.compile(nn.Linear(2, 2)), "a model"):
        with pytest.raises(ArgumentError, match=r"bppsa\.trainer takes a model that .*schedule=.* returned, not a"):
            bppsa.trainer(other)  # type: ignore[arg-type]


def test_a_scheduled_model_is_not_compiled_again() -> None:
    compiled = bppsa.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), schedule=gpipe(), stages=2)
    with pytest.raises(StrategyError, match="has a schedule already; compile the model"):
        bppsa.compile(compiled)
