"""What a report tells of a loop's sizes."""

from __future__ import annotations

import copy
import gc
import inspect
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.codegen.cpu import progress
from bppsa.common.process.collector import collector_paused
from bppsa.frontend.loops.scans.fuse import Fused
from tests.loops import effects
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, N, x


class Started(Cell):
    """The first step differs from the others, as its state has no gradient, or is a Parameter."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first = how, nn.Parameter(torch.zeros(N, H))

    def forward(self, x: Tensor) -> Tensor:
        h: Any = {"none": None, "parameter": self.first, "zeros": self.start(x)}[self.how]
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("how", ["none", "parameter", "zeros"])
def test_the_steps_are_those_of_the_loop(how: str) -> None:
    pair = Pair(Started(how))
    for seed in range(2):
        (decision,) = pair.call(x(20), seed=seed)
    assert decision.strategy == "sequential"
    assert decision.numbers["T"] == 20


class Layers(Cell):
    """The same line loops over time for each of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.GRUCell(H, H)

    def forward(self, x: Tensor) -> Tensor:
        given = x.unbind(1)
        for cell in (self.cell, self.more):
            h, out = self.start(x), []
            for value in given:
                h = cell(value, h)
                out.append(h)
            given = tuple(out)
        return torch.stack(given, 1)


def test_layers_are_told_apart() -> None:
    pair = Pair(Layers())
    for seed in range(2):
        decisions = pair.call(x(20), seed=seed)
    assert [decision.numbers["T"] for decision in decisions] == [20]
    assert decisions[0].details[-1].startswith("also run as scans: T=20, ")


class Chooses(Cell):
    """Each step reads its input or what the step before has given."""

    def __init__(self, choices: Sequence[bool] = ()) -> None:
        super().__init__()
        self.choices = choices

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            given = self.choices[t] if self.choices else random.random() < 0.5  # chooses
            h = self.cell(x[:, t] if given else self.head(h)[:, :1] * x[:, 0], h)
        return h


def line_of(model: type, text: str) -> int:
    """Of a class, that of a text."""
    lines, first = inspect.getsourcelines(model)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_steps_that_random_numbers_of_pythons_tell_apart() -> None:
    plain = Chooses()
    fast: Any = bppsa.compile(copy.deepcopy(plain).double())
    for _ in range(3):
        given, found = x(20), list[Tensor]()
        for model in (plain.double(), fast):
            random.seed(3)
            found.append(model(given))
        torch.testing.assert_close(*found)
        (decision,) = bppsa.report(fast).decisions
        assert decision.path == f"test_told.py:{line_of(Chooses, 'for t in')}"
        assert decision.numbers["T"] == 20
        assert "# chooses: Random.random: draws Python's random numbers" in decision.reason
        assert "draw a tensor of them before the loop, and choose with torch.where" in decision.reason
    assert decision.reason in str(bppsa.explain(plain, x(20)))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ("1101001110100101101011001110", "; fewer than 8 of 28 in a row are"),
        ("1000" * 7, "; 4 of them together repeat, but fewer than 8 times"),
    ],
)
def test_how_many_steps_are_alike(choices: str, said: str) -> None:
    pair = Pair(Chooses([choice == "1" for choice in choices]))
    for seed in range(2):
        (decision,) = pair.call(x(28), seed=seed)
    assert (decision.strategy, decision.numbers["T"]) == ("pytorch", 28)
    assert decision.path == f"test_told.py:{line_of(Chooses, 'for t in')}"
    assert "its steps are not alike: " in decision.reason
    assert said in decision.reason


class ManyLayers(nn.Module):
    """A loop over layers that are not alike, which is none over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(N + i, N + i + 1) for i in range(10))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) if i % 3 else layer(x)
        return x


def test_a_loop_over_layers_is_none_over_time() -> None:
    assert Pair(ManyLayers()).strategies(x()) == []


class Attends(Cell):
    """A memory is read in each step, and stays."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        h = self.start(x)
        for t in range(x.shape[1]):
            weights = (h[:, None] * memory).sum(-1).softmax(-1)
            h = self.cell(x[:, t], h + (weights[..., None] * memory).sum(1))
        return h


def test_a_memory_that_stays_is_none_of_the_states() -> None:
    pair = Pair(Attends())
    given = x(12)
    memory = torch.randn(len(given), 5, H, dtype=given.dtype)
    for seed in range(2):
        (decision,) = pair.call(given, memory, seed=seed)
    assert decision.numbers["H"] == H


@pytest.mark.parametrize("told", [False, True])
def test_a_long_look_at_a_loop_is_announced_once(
    told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOOPS", progress.LateNotice(0.01 if told else 1000.0))
    for _ in range(2):
        Pair(Started("zeros")).call(x(20))
    line = inspect.getsourcelines(Started.forward)[1] + 3
    said = f"bppsa: looking at the loop at test_told.py:{line}, once in each process for each kind of call\n"
    assert capsys.readouterr().err.count(said) == told


def test_the_collector_pauses_for_all_threads() -> None:
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled(), "as its user has it"
    finally:
        gc.enable()


class Counts(Cell):
    """A number that is a tensor counts the steps, beside the states of the rows."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.begin, self.grows = start, nn.Parameter(torch.tensor(0.9))

    def forward(self, x: Tensor) -> Any:
        h, n, out = self.start(x), torch.tensor(self.begin), []
        for t in range(x.shape[1]):
            n = n + 1 if isinstance(self.begin, int) else n * self.grows + x[0, t, 0]
            h = self.cell(x[:, t], h) * (n > 3) / (n.abs() + 1)
            out.append(h)
        return torch.stack(out, 1), n


@pytest.mark.parametrize("start", [0, 4.5])
def test_a_number_that_counts_the_steps_is_given_to_them(start: float) -> None:
    pair = Pair(Counts(start))
    for seed in range(3):
        (decision,) = pair.call(x(20), seed=seed)
    assert decision.strategy == "sequential"
    assert (decision.numbers["B"], decision.numbers["H"]) == (x(20).shape[0], H)


class CountsStates(Cell):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.zero = start

    def forward(self, x: Tensor) -> Tensor:
        h, n = self.start(x), self.zero
        for t in range(x.shape[1]):
            n = n + (h.sum() > 0)  # counts
            h = self.cell(x[:, t], h) / (n + 1)
        return h


def test_a_whole_number_that_waits_for_the_states_of_all_rows() -> None:
    assert Pair(CountsStates(torch.tensor(0))).strategies(x(20)) == ["sequential"]


def test_a_number_that_waits_for_the_states_is_told_with_a_mend() -> None:
    (decision,) = Pair(CountsStates(torch.tensor(0.0, dtype=torch.float32))).call(x(20))
    assert decision.strategy == "pytorch"
    assert "its carry waits for values of other shapes or dtypes" in decision.reason
    assert "carry a number for each row, as [B] or [B, 1], or count in Python" in decision.reason


class Named(Cell):
    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        h, out = self.start(given["x"]), []
        for t in range(given["x"].shape[1]):
            h = self.cell(given["x"][:, t], h)
            out.append(h)
        return {"last": h, "all": torch.stack(out, 1)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda output: 1.01 * output, "output['last'] differs from PyTorch's by "),
        (
            lambda output: 1.01 * output - 0.01 * output.detach(),
            "the gradient of given['x'] differs from PyTorch's by ",
        ),
    ],
)
def test_what_differs_is_named(wrong: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fused.__call__
    monkeypatch.setattr(Fused, "__call__", lambda *given: [wrong(output) for output in run(*given)])
    (decision,) = Pair(Named()).call({"x": x(20)})
    assert decision.strategy == "pytorch"
    assert said in decision.reason


def returns(rewards: Tensor, ended: Tensor) -> Tensor:
    value, out = torch.zeros_like(rewards[0]), []
    for t in reversed(range(len(rewards))):
        value = rewards[t] + 0.9 * (1 - ended[t]) * value
        out.insert(0, value)
    return torch.stack(out)


def test_what_is_read_in_each_step_is_read_at_once_without_gradients_too() -> None:
    fast = bppsa.loop(returns)
    with torch.no_grad():
        for _ in range(3):
            given = torch.randn(64, 3, dtype=torch.float64), torch.randn(64, 3, dtype=torch.float64)
            torch.testing.assert_close(fast(*given), returns(*given))
    (decision,) = bppsa.report(fast).decisions
    assert decision.strategy == "sequential"
    assert "ops beside it" not in decision.reason


@pytest.mark.parametrize(("kind", "text"), [(effects.Logs, "self.log.append"), (effects.Global, "counted += 1")])
def test_what_writes_is_named_with_its_line(kind: type[effects.Steps], text: str) -> None:
    pair = Pair(kind())
    pair.call(x())
    (decision,) = [d for d in pair.decisions() if d.kind == "loop"]
    assert f"effects.py:{line_of(kind, text)}: " in decision.reason
