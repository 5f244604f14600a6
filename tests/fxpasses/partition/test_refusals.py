"""What cannot be cut names the line and the mend, and so does a call that the stages are not for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bppsa import partition
from bppsa.errors import ArgumentError, PartitionError
from tests.fxpasses.partition.support import run


class Model(nn.Module):
    """With a forward that is given."""

    def __init__(self, body: Callable[[Model, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.body = nn.Linear(4, 4), nn.Linear(4, 4), body
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        return self.b(self.body(self, self.a(x)))


def by_values(model: Model, x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def to_a_number(model: Model, x: Tensor) -> Tensor:
    return x * float(x.mean())


def over_values(model: Model, x: Tensor) -> Tensor:
    for _ in range(int(x.argmax())):
        x = x + 1
    return x


def sets_an_attribute(model: Model, x: Tensor) -> Tensor:
    model.last = x
    return x


def hidden(model: Model, x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, Tensor) else x


def draws_unseen(model: Model, x: Tensor) -> Tensor:
    return x + torch.empty(4).uniform_()


@pytest.mark.parametrize(
    ("body", "said", "line"),
    [
        (by_values, "by the values of a tensor", "if x.sum() > 0"),
        (to_a_number, "by the values of a tensor", "float(x.mean())"),
        (over_values, "by the values of a tensor", "range(int(x.argmax()))"),
        (sets_an_attribute, "sets the attribute last of a Model", "model.last = x"),
        (draws_unseen, "random numbers are drawn from no argument", "torch.empty(4).uniform_()"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_cannot_be_traced_names_the_line(body: Any, said: str, line: str) -> None:
    with pytest.raises(PartitionError, match=r"stages=\[module, \.\.\.\]") as error:
        partition(Model(body), torch.randn(3, 4), 2)
    assert said in str(error.value)
    assert f"{__file__}:" in str(error.value)
    assert line in str(error.value)


def test_what_tracing_hides_is_found_out() -> None:
    with pytest.raises(PartitionError, match=r"isinstance\(x, Tensor\).*stages=\[module"):
        partition(Model(hidden), torch.randn(3, 4), 2)


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
    with pytest.raises(PartitionError, match=r"if x\.shape\[0\] > 3.*depends on bool False, which was bool True"):
        run(cut, torch.randn(2, 4))


def test_a_call_is_as_the_example_was() -> None:
    cut = partition(Decides(), torch.randn(4, 4), 2)
    with pytest.raises(PartitionError, match="argument flag is False, and the model was partitioned for True"):
        run(cut, torch.randn(4, 4), False)
    with pytest.raises(PartitionError, match="another structure"):
        run(cut, [torch.randn(4, 4)])


@pytest.mark.parametrize("stages", [0, 9])
def test_so_many_stages_there_can_be(stages: int) -> None:
    with pytest.raises(PartitionError, match=rf"cannot be cut into {stages} stages; there can be 1 to 4"):
        partition(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.randn(3, 4), stages)


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
