"""Loops over time that Dynamo has unrolled run as scans, and compute what PyTorch computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import bppsa
from bppsa.codegen.cpu import progress
from bppsa.frontend.call_log import collecting
from tests.backend.support import compiled
from tests.breadth import alternate
from tests.loops import filters, models, more_models, without_features
from tests.loops.beside import assert_alike, run
from tests.loops.cells import FOUND, B, Cell, H, N, T, x
from tests.loops.models import Rnn

TABLES = (models, more_models, filters, without_features)  # whose rows are in FOUND
OF_OUR_OPS = {"while, a step of nn.GRU", "a step of nn.LSTM, time first"}  # one op each in a graph already


class Fast:
    """A model in float64, and its copy under torch.compile."""

    def __init__(self, model: nn.Module, fallback: str = "eager", fullgraph: bool = True) -> None:
        self.model, copied = model.double(), copy.deepcopy(model)
        self.fast = compiled(copied, fallback, fullgraph)
        self.copied = copied

    def both(self, change: Callable[[nn.Module], Any]) -> None:
        change(self.model), change(self.copied)

    def call(self, *args: Any, seed: int = 0) -> list[str]:
        """Both on the same arguments and random numbers; the strategies of loops."""
        with collecting() as taken:
            found = run(self.fast, args, {}, seed)
        for ours, theirs in zip(found, run(self.model, args, {}, seed), strict=True):
            assert_alike(theirs, ours)
        return [decision.strategy for decision in taken if decision.kind == "loop"]


@pytest.mark.parametrize("name", alternate(name for name in FOUND if name not in OF_OUR_OPS))
def test_unrolled_loop_is_a_scan(name: str) -> None:
    model, inputs = FOUND[name]()
    fast = Fast(model, fullgraph=False)
    for seed in range(3):
        decided = fast.call(*inputs, seed=seed)
    assert "sequential" in decided


class Behind(nn.Module):
    """A loop behind a layer that is an op of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cell = nn.GRU(N, H, batch_first=True), nn.GRUCell(H, H)

    def forward(self, x: Tensor) -> Tensor:
        read, _ = self.layer(x)
        h, out = torch.zeros_like(read[:, 0]), []
        for t in range(x.shape[1]):
            h = self.cell(read[:, t], h)
            out.append(h)
        return torch.stack(out, 1)


def test_a_loop_behind_a_recurrent_layer_is_a_scan() -> None:
    fast = Fast(Behind())
    for seed in range(3):
        assert "sequential" in fast.call(x(), seed=seed)


def test_other_sizes_and_modes() -> None:
    fast = Fast(Rnn())
    for rows, steps in ((B, T), (B + 2, T), (B + 4, T), (B, T + 3), (B + 2, T + 3), (B, T)):
        fast.call(torch.randn(rows, steps, N, dtype=torch.float64, requires_grad=True))
    assert fast.call(x()) == ["sequential"]
    fast.both(nn.Module.eval)
    with torch.no_grad():
        fast.call(x())
        assert fast.call(x()) == ["sequential"]


def test_changed_weights_are_seen() -> None:
    fast = Fast(Rnn())
    for number in range(4):
        decided = fast.call(x())
        with torch.no_grad():
            fast.both(lambda model: [p.mul_(0.9) for p in model.parameters()])
        if number == 2:
            fast.both(lambda model: model.cell.weight_ih.requires_grad_(False))
            fast.call(x())
    assert decided == ["sequential"]


class Noisy(Cell):
    def forward(self, x: Tensor) -> Tensor:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = nn.functional.dropout(self.cell(x[:, t], h), 0.3, self.training)
            out.append(h)
        return self.head(torch.stack(out, 1))


def test_draws_are_those_of_pytorch() -> None:
    fast = Fast(Noisy())
    for seed in range(4):
        decided = fast.call(x(), seed=seed)
    assert decided == ["sequential"]


class Counts(Cell):
    """Changes buffers, within the loop and around it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(H))
        self.seen: Tensor
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        self.seen += 1
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            self.mean.lerp_(h.detach().mean(0), 0.1)
        return self.head(h) * self.seen + self.mean.sum()


def test_buffers_that_change() -> None:
    fast = Fast(Counts(), fullgraph=False)
    for seed in range(4):
        fast.call(x(), seed=seed)


class Whitens(Cell):
    """Fails on stand-ins, whose covariance has no Cholesky factor."""

    def forward(self, x: Tensor, covariance: Tensor) -> Tensor:
        h = self.start(x)
        factor = torch.linalg.cholesky(covariance)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t] @ factor, h)
        return self.head(h)


def test_stand_ins_that_ops_refuse(graphs: list[fx.GraphModule]) -> None:
    fast = Fast(Whitens())
    assert fast.call(x(), torch.eye(N, dtype=torch.float64)) == []
    assert len(graphs) == 1


def test_layers_that_repeat_are_no_loop(graphs: list[fx.GraphModule]) -> None:
    fast = Fast(nn.Sequential(*(nn.Linear(4, 4) for _ in range(12))))
    assert fast.call(torch.randn(3, 4, dtype=torch.float64)) == []
    assert len(graphs) == 1


def test_arguments_of_odd_strides() -> None:
    fast = Fast(Rnn())
    for made in (
        x().transpose(0, 1).contiguous().transpose(0, 1),
        x()[:1].expand(B, T, N),
        x()[..., :1].expand(B, T, N),
    ):
        for _ in range(2):
            decided = fast.call(made.detach())
        assert decided == ["sequential"]


def test_report_names_the_line() -> None:
    torch.manual_seed(0)
    model = bppsa.compile(Rnn(), fallback="inductor")
    model(x().detach().float())
    (decision,) = (d for d in bppsa.report(model).decisions if d.kind == "loop")
    assert decision.strategy == "sequential"
    assert decision.path.startswith("models.py:")


def test_who_waits_is_told_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress.LOOPS, "during", lambda text: nullcontext(told.append(text)))
    compiled(Rnn())(x().detach().float())
    assert len(told) == 2  # the trial, and the first call
    assert all(text.startswith("looking at the loop at models.py:") for text in told)
