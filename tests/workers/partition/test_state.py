"""What forwards change of the model's own, under any name, and batches of which a model selects no row."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import bppsa
from bppsa.errors import PartitionError, ScheduleError
from bppsa.schedule import Recipe, gpipe, lpp
from tests.workers.partition.support import WIDTH, Model, batch, check, place, refused


class Counted(nn.Module):
    """A parametrization with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, w: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.n.add_(1)
        return w * self.n.clone()


class Normed(nn.Linear):
    """As in EDM2."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.copy_(nn.functional.normalize(self.weight))
        return super().forward(x)


def counted() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    parametrize.register_parametrization(layer, "weight", Counted())
    return layer


def spectral() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))


def step(model: nn.Module, schedule: Recipe, microbatches: int = 4) -> Tensor:
    compiled: Any = bppsa.compile(
        model, schedule=schedule, stages=4, microbatches=microbatches, loss_fn=nn.functional.mse_loss
    )
    return bppsa.trainer(compiled).step(torch.randn(8, WIDTH), torch.randn(8, WIDTH))


@pytest.mark.parametrize("layer", [counted, spectral])
def test_the_state_of_a_parametrization_is_the_stages(layer: Any) -> None:
    check(nn.Sequential(*(layer() for _ in range(3))), schedule=gpipe())
    with pytest.raises(ScheduleError, match=r"changes the buffer 0\.parametrizations\.weight\.0\..* such as gpipe"):
        step(nn.Sequential(*(layer() for _ in range(5))), lpp(G=2))


@pytest.mark.parametrize("schedule", [gpipe(), lpp(G=2)], ids=["gpipe", "lpp"])
def test_weights_that_are_changed_while_others_need_them(schedule: Recipe) -> None:
    said = place(Normed.forward, "self.weight.copy_") + r".*copy_.*the Parameter 0\.weight.*microbatches=1"
    with pytest.raises(ScheduleError, match=said):
        step(nn.Sequential(*(Normed(WIDTH, WIDTH) for _ in range(6))), schedule)
    step(nn.Sequential(*(Normed(WIDTH, WIDTH) for _ in range(6))), schedule, microbatches=1)


class Named(Model):
    def __init__(self, name: str, kind: str) -> None:
        super().__init__(lambda model, x: model.scaled(x))
        self.name = name
        if kind == "buffer":
            self.register_buffer(name, torch.randn(WIDTH))
        else:
            setattr(self, name, nn.Linear(WIDTH, WIDTH) if kind == "module" else nn.Parameter(torch.randn(WIDTH)))

    def scaled(self, x: Tensor) -> Tensor:
        found = getattr(self, self.name)
        return found(x) if isinstance(found, nn.Module) else x * found


@pytest.mark.parametrize("kind", ["buffer", "Parameter", "module"])
@pytest.mark.parametrize("name", ["code", "graph", "meta", "recompile", "print_readable", "model", "_constant0"])
def test_names_of_a_graphs_own(name: str, kind: str) -> None:
    check(Named(name, kind))


class Selecting(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x[x[:, 0] > 0]


def test_a_micro_batch_of_which_no_row_is_selected() -> None:
    model = Selecting(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))
    nn.init.constant_(model[-1].bias, -100.0)  # type: ignore[arg-type]
    compiled: Any = bppsa.compile(  # how many rows are selected no graph tells, so that what they count has to be said
        model,
        schedule=gpipe(),
        stages=4,
        microbatches=4,
        loss_fn=lambda y, t: y.square().sum() / len(t),
        loss_weight=len,
    )
    assert bppsa.trainer(compiled).step(torch.randn(8, WIDTH), torch.randn(8, WIDTH)) == 0


def seeds(self: Model, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x + torch.randn(WIDTH)


def asks_the_clock(self: Model, x: Tensor) -> Tensor:
    return x * (time.time() % 1)


@pytest.mark.parametrize(
    ("forward", "line"), [(seeds, "torch.manual_seed"), (asks_the_clock, "time.time")], ids=["seed", "clock"]
)
def test_what_a_forward_asks_of_the_process(forward: Any, line: str) -> None:
    refused(Model(forward), place(forward, line), batch())


def test_torchscript_within_a_model() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), scripted())
    with pytest.raises(PartitionError, match=r"1 \(.*TorchScript.*give the unscripted module"):
        step(model, gpipe())


def scripted() -> Any:
    return torch.jit.script(nn.Linear(WIDTH, WIDTH))


def threads(self: Model, x: Tensor) -> Tensor:
    found: list[Tensor] = []

    def run() -> None:
        found.append(self.second(x))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_layer_in_another_thread() -> None:
    error = refused(Model(threads), "", batch())
    assert "calls" not in str(error)
