"""Calls that the stages were not cut for, and modules that are no stages of the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bppsa import partition
from bppsa.errors import ArgumentError, PartitionError, StrategyError
from tests.fxpasses.partition.support import run


class Decides(nn.Module):
    """By the number of rows, which later batches need not have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        y = self.a(x)
        if x.shape[0] > 3:
            y = y * 2
        return self.b(y)


def test_a_decision_that_another_batch_would_take_otherwise_is_refused() -> None:
    cut = partition(Decides(), torch.randn(4, 4), 2)
    run(cut, torch.randn(7, 4))
    with pytest.raises(
        PartitionError, match=r"if x\.shape\[0\] > 3:: x\.shape\[0\] is 2, and Python decided otherwise"
    ):
        run(cut, torch.randn(2, 4))


def test_a_call_is_as_the_example_was() -> None:
    cut = partition(Decides(), torch.randn(4, 4), 2)
    with pytest.raises(PartitionError, match="argument flag is False, and the model was partitioned for True"):
        run(cut, torch.randn(4, 4), False)
    with pytest.raises(
        PartitionError, match=r"another structure .*: a list of 1 \(a tensor \[4, 4\]\), and not a tensor"
    ):
        run(cut, [torch.randn(4, 4)])
    with pytest.raises(PartitionError, match=r"another structure .*: a list of 9 \(a list of 9\), and not a tensor"):
        run(cut, torch.randn(9, 9).tolist())
    with pytest.raises(PartitionError, match=r"argument x is a ndarray, and the model was partitioned for a tensor"):
        run(cut, torch.randn(9, 9).numpy())


def test_the_number_of_stages_that_nobody_asked_for_is_named() -> None:
    with pytest.raises(
        PartitionError, match=r"into 8 stages; there can be 1 to 1; where stages= is not given, it is 8"
    ):
        partition(nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4))


def test_an_option_says_something_or_is_an_error() -> None:
    model, x = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.randn(3, 4)
    with pytest.raises(StrategyError, match="unknown balance='time'; known: cost, measured"):
        partition(model, x, 2, balance="time")
    with pytest.raises(StrategyError, match=r"speeds=\[1, 2\] are not 4 numbers above 0"):
        partition(model, x, 4, speeds=[1, 2])
    for options in ({"balance": "measured"}, {"speeds": [1] * 4}, {"all_gather": lambda own: [own]}):
        with pytest.raises(StrategyError, match=f"{next(iter(options))}= says nothing where stages are given"):
            partition(model, x, list(model), **options)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="all_gather= says nothing with balance='cost'"):
        partition(model, x, 2, all_gather=lambda own: [own])


@pytest.mark.parametrize("stages", [0, 9])
def test_so_many_stages_there_can_be(stages: int) -> None:
    with pytest.raises(PartitionError, match=rf"cannot be cut into {stages} stages; there can be 1 to 4"):
        partition(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.randn(3, 4), stages)


@pytest.mark.parametrize(
    ("layer", "x", "says"),
    [
        (nn.Linear(33, 5), torch.ones(3, 32), r"\(Linear\): its input has 32 features, in_features is 33"),
        (
            nn.Linear(4, 5),
            torch.ones(3, 4).double(),
            r"\(Linear\): its input is torch.float64, its weight torch.float32",
        ),
        (nn.Conv2d(3, 4, 3), torch.ones(2, 4, 5, 5), r"\(Conv2d\): its input has 4 channels, in_channels is 3"),
        (nn.BatchNorm2d(3), torch.ones(2, 4, 5, 5), r"\(BatchNorm2d\): its input has 4 channels, num_features is 3"),
        (nn.LayerNorm(3), torch.ones(2, 4), r"\(LayerNorm\): its input ends in \[4\], normalized_shape is \[3\]"),
        (nn.GRU(3, 4), torch.ones(2, 2, 4), r"\(GRU\): its input has 4 features, input_size is 3"),
        (nn.Embedding(3, 4), torch.tensor([3, 0]), r"\(Embedding\): its input holds 3, and indices go from 0 to 2"),
        (nn.MaxPool2d(9), torch.ones(2, 4, 5, 5), r"\(MaxPool2d\): .*Output size is too small"),
    ],
)
def test_the_layer_that_the_example_does_not_fit_is_named(layer: nn.Module, x: torch.Tensor, says: str) -> None:
    model = nn.Sequential(nn.Identity(), layer)
    with pytest.raises(PartitionError, match=f"^Sequential does not run on the example: 1 {says}"):
        partition(model, x, 2)
    with pytest.raises(PartitionError, match=f"each on what the one before it returns: 1 {says}"):
        partition(model, x, list(model))


def test_modules_by_hand_are_the_models_and_compute_what_it_does() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    with pytest.raises(PartitionError, match="stages is empty"):
        partition(model, x, [])
    with pytest.raises(PartitionError, match="a Linear that is no submodule of Sequential"):
        partition(model, x, [model[0], nn.Linear(4, 4)])
    with pytest.raises(PartitionError, match="do not give what it gives"):
        partition(model, x, [model[0], model[2]])
    with pytest.raises(ArgumentError, match="give a tuple of positional arguments"):
        partition(model, (x, x), 2)
