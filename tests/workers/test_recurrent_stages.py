"""Recurrent layers within stages: exact, and by the kernels that `bppsa.compile` gives a model without a schedule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import PartitionError
from bppsa.schedule import ddp, gpipe, lpp, one_f_one_b, zero_bubble
from tests.breadth import diagonal
from tests.workers import support

pytestmark = pytest.mark.usefixtures("in_float64")


class Recurrences(nn.Module):
    """All kinds; the state of one goes to another, and the second GRU has two layers in two directions."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.GRU(4, 5, batch_first=True)
        self.second = nn.GRU(5, 3, num_layers=2, dropout=dropout, bidirectional=True, batch_first=True)
        self.third = nn.LSTM(6, 5, batch_first=True)
        self.fourth = nn.RNN(5, 5, batch_first=True)
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [B, T, 4]."""
        y, h = self.first(x)
        y, (_, c) = self.third(self.second(y)[0])
        return self.out(self.fourth(y, h)[0]), c[-1]


def scheduled(model: nn.Module, schedule: Any, **options: Any) -> Any:
    options = {"stages": 4, "microbatches": 3, "loss_fn": loss_fn} | options
    return bppsa.compile(copy.deepcopy(model), schedule=schedule, **options)


def loss_fn(output: Any, target: Tensor) -> Tensor:
    """target: [B, T, 4]."""
    return (output[0] - target).square().mean() + output[1].square().mean()


@pytest.mark.parametrize(
    ("schedule", "strategy"), diagonal([gpipe(), zero_bubble(), ddp(), lpp(2, 2)], ["auto", "sequential"])
)
def test_gradients_are_the_models(schedule: Any, strategy: str) -> None:
    model = Recurrences()
    compiled = scheduled(model, schedule, strategy=strategy)
    x, target = torch.randn(7, 40, 4, requires_grad=True), torch.randn(7, 40, 4)
    expected = loss_fn(model(x), target)
    expected.backward()
    of_x, x.grad = x.grad, None
    support.close(compiled.step(x, target), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    support.close(x.grad, of_x)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_layers_run_by_generated_kernels_in_their_stages(dropout: float) -> None:
    compiled = scheduled(Recurrences(dropout), one_f_one_b(), strategy="sequential")
    assert [(d.path, d.strategy) for d in compiled.report.decisions] == [
        (path, "waiting") for path in ("first", "second", "third", "fourth")
    ]
    compiled.step(torch.randn(7, 40, 4), torch.randn(7, 40, 4))
    found = {d.path: d for d in compiled.report.decisions}
    assert {path: d.strategy for path, d in found.items()} == dict.fromkeys(
        ("first", "second", "third", "fourth"), "sequential"
    )
    assert found["first"].numbers["B"] == 2  # rows of the last micro-batch
    assert "first (gru" in str(compiled.report)


def assigned(layer: nn.GRU) -> None:
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0.detach() * 1.5)


def loaded(layer: nn.GRU) -> None:
    layer.load_state_dict({name: weight * 1.5 for name, weight in layer.state_dict().items()}, assign=True)


def tied(layer: nn.GRU) -> None:
    layer.weight_hh_l1, layer.bias_hh_l0 = layer.weight_hh_l0, layer.bias_ih_l0


def normed(layer: nn.GRU) -> None:
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")


@pytest.mark.parametrize("change", [assigned, loaded, tied, normed])
@pytest.mark.parametrize("steps", [2, 20], ids=["by_pytorch", "by_kernels"])
def test_weights_may_be_others_than_the_layer_was_made_with(change: Any, steps: int) -> None:
    """A layer notices that in its next call; what it then remembers is no state."""
    layer = nn.GRU(4, 4, num_layers=2, batch_first=True)
    change(layer)
    model, x = nn.Sequential(nn.Linear(4, 4), layer, Taken(), nn.Linear(4, 4)), torch.randn(6, steps, 4)
    recompute = "full" if change is normed else None
    compiled: Any = scheduled(model, lpp(G=2), stages=2, loss_fn=nn.MSELoss(), recompute=recompute)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, compiled)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        expected = nn.MSELoss()(model(x), x)
        expected.backward()
        support.close(compiled.step(x, x), expected.detach())
        support.same(support.gradients(compiled), support.gradients(model))


class Taken(nn.Module):
    """What a recurrent layer returns first."""

    def forward(self, result: tuple[Tensor, Tensor]) -> Tensor:
        return result[0]


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.gru = nn.Linear(4, 4), nn.GRU(4, 4, num_layers=3, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.into(x))[0]


def test_dropout_between_layers_is_the_same_by_kernels_and_by_pytorch() -> None:
    model, x, found = Last(), torch.randn(6, 1, 4), []
    for strategy, runs in (("sequential", "sequential"), ("auto", "pytorch")):  # which takes one step itself
        compiled = scheduled(model, gpipe(), stages=2, strategy=strategy, seed=1, loss_fn=nn.MSELoss())
        found.append((compiled.step(x, x), support.gradients(compiled)))
        assert [d.strategy for d in compiled.report.decisions] == [runs]
    support.close(found[0], found[1])


class Scanned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = bppsa.cells.MinGRU(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, 4]."""
        return bppsa.scan(self.cell, self.cell.initial(x.shape[0]), x.transpose(0, 1))[1].transpose(0, 1)


def test_a_scan_is_cut_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scanned(), nn.Linear(4, 4))
    with pytest.raises(PartitionError, match=r"bppsa\.scan over MinGRU.*stages=\[module"):
        scheduled(model, gpipe(), stages=2, example_inputs=torch.randn(7, 40, 4))
    clone = copy.deepcopy(model)
    compiled = bppsa.compile(
        clone, schedule=gpipe(), stages=list(clone), microbatches=3, loss_fn=nn.MSELoss(), strategy="chunked"
    )
    x, target = torch.randn(7, 40, 4), torch.randn(7, 40, 4)
    expected = nn.functional.mse_loss(model(x), target)
    expected.backward()
    support.close(compiled.step(x, target), expected.detach())
    support.same(support.gradients(compiled), support.gradients(model))
    assert [d.strategy.split("(")[0] for d in compiled.report.decisions] == ["chunked"]
