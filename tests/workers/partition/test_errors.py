"""What nobody can cut is one error of three lines: the user's line, what happens there, and the mend."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.errors import PartitionError, WorkerError
from bppsa.schedule import gpipe
from tests.workers.partition.support import WIDTH, Model, batch, check_or_refused, place

Forward = Callable[[Model, Tensor], Any]
# What the user has never seen: PyTorch's graphs, numbers without a value, and modules of ours and of PyTorch's.
JARGON = re.compile(
    r"graph\(\)|GraphModule|placeholder|%\w+|\bu0\b|\bs\d+\b|\bEq\(|Unbacked|unbacked|SymInt|SymBool|FakeTensor|Proxy|"
    r"proxy|torch\._check|\baten\b|dynamo|draft_export|guard_or|suggested fixes|\bfx\b"
)


def branches(self: Model, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x


def loops(self: Model, x: Tensor) -> Tensor:
    while x.norm() > 1:
        x = x / 2
    return x


def reads_a_number(self: Model, x: Tensor) -> Tensor:
    return x / max(x.max().item(), 1.0)


def reads_an_index(self: Model, x: Tensor) -> Tensor:
    return x[:, : int(x.argmax() % 3) + 1].sum(1, keepdim=True) + x


def asks_numpy(self: Model, x: Tensor) -> Tensor:
    return x * torch.from_numpy(x.detach().numpy())


def makes_a_list(self: Model, x: Tensor) -> Tensor:
    return x * torch.tensor(x.detach().tolist(), dtype=x.dtype)


def differentiates(self: Model, x: Tensor) -> Tensor:
    return torch.autograd.grad(x.square().sum(), x, create_graph=True)[0]


UNCUT = (
    (branches, "if x.sum() > 0", "torch.where"),
    (loops, "while x.norm() > 1", "torch.where"),
    (reads_a_number, "x.max().item()", ""),
    (reads_an_index, "int(x.argmax() % 3)", ""),
    (asks_numpy, ".numpy()", "functions of torch"),
    (differentiates, "torch.autograd.grad", ""),
)


class Detector(nn.Module):
    """As many boxes as the scores of a batch ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score, self.box = nn.Linear(WIDTH, 8), nn.Linear(8, 5), nn.Linear(8, 20)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        h = torch.relu(self.body(x))
        scores, boxes = self.score(h).sigmoid(), self.box(h).unflatten(1, (5, 4))
        found = []
        for score, box in zip(scores, boxes, strict=True):
            keep = torch.nonzero(score > 0.5).flatten()
            kept = [keep[0]] if len(keep) else []
            for i in keep[1:]:
                if all((box[i] - box[j]).abs().max() > 0.1 for j in kept):
                    kept.append(i)
            found.append({"scores": score[kept], "boxes": box[kept]})
        return found


def told(model: nn.Module) -> PartitionError:
    """The error of a cut."""
    with pytest.raises(PartitionError) as error:
        bppsa.partition(model, batch().args, 2)
    return error.value


def check_told(error: PartitionError, model: nn.Module) -> None:
    said = str(error)
    assert len(said.splitlines()) <= 3
    assert not JARGON.search(said), JARGON.search(said)
    assert type(model).__name__ in said
    assert "stages=[" in said  # by hand it can be done
    shown = "".join(traceback.format_exception(error))
    assert not re.search(r"graph\(\):|class GraphModule|placeholder\[target|\bs\d+ = sym_size", shown)


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Any:
    """No graph, on any channel."""
    with caplog.at_level(logging.WARNING):
        yield
    assert capfd.readouterr() == ("", "")
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("torch")]


@pytest.mark.parametrize(("forward", "text", "mend"), UNCUT, ids=lambda case: getattr(case, "__name__", ""))
def test_the_line_and_the_mend_are_told(forward: Forward, text: str, mend: str) -> None:
    model = Model(forward)
    error = told(model)
    check_told(error, model)
    assert re.search(place(forward, text), str(error)), str(error)
    assert mend in str(error)


def test_lists_of_values() -> None:
    """They may be read when a stage runs."""
    check_or_refused(Model(makes_a_list), place(makes_a_list, ".tolist()"))


def test_a_detector() -> None:
    """The first line that asks what a tensor holds is told."""
    model = Detector()
    error = told(model)
    check_told(error, model)
    assert re.search(r"test_errors\.py:\d+", str(error))


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_nobody_can_call() -> None:
    """The model's own error, with its line."""

    def wrong(self: Model, x: Tensor) -> Tensor:
        return x @ torch.ones(WIDTH + 1)

    model = Model(wrong)
    error = told(model)
    assert re.search(place(wrong, "x @ torch.ones"), str(error)), str(error)
    assert len(str(error).splitlines()) <= 3


class OnlyThree(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def test_more_stages_than_there_are_parts() -> None:
    """The error says how many there can be, and so many there can be."""
    model, args = OnlyThree(), batch().args
    with pytest.raises(PartitionError, match=r"into 1000 stages; there can be 1 to \d+") as error:
        bppsa.partition(model, args, 1000)
    most = int(re.findall(r"1 to (\d+)", str(error.value))[0])
    assert most >= 3
    assert len(bppsa.partition(model, args, most)) == most
    with pytest.raises(PartitionError, match=rf"into {most + 1} stages; there can be 1 to {most}"):
        bppsa.partition(model, args, most + 1)


def test_features_that_do_not_fit_name_the_layer() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Tanh(), nn.Linear(4, 3)))
    compiled = bppsa.compile(model, schedule=gpipe(), stages=1, microbatches=2, loss_fn=nn.MSELoss())
    bppsa.trainer(compiled).step(torch.randn(8, 4), torch.randn(8, 3))
    with pytest.raises(WorkerError, match=r"input\.shape\[1\] is 5, .*its layer 1\.1 \(Linear\)"):
        bppsa.trainer(compiled).step(torch.randn(8, 5), torch.randn(8, 3))
