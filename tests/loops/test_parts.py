"""What a loop consists of: ops that are part of the scan, run beside it, or stop it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from tests.loops.beside import Pair
from tests.loops.cells import Cell, H, N, x


class Unfused(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            h = torch.ones_like(h).igamma(h * h).tanh()
            h = h + torch.igammac(torch.ones_like(h), h * h)
        return h


def test_a_reason_names_the_lines_of_its_ops() -> None:
    pair = Pair(Unfused())
    pair.call(x())
    (decision,) = pair.decisions()
    assert decision.path.startswith("test_parts.py:")
    lines = decision.reason.splitlines()
    wanted = ": h = torch.ones_like(h).igamma(h * h).tanh(): ", ": h = h + torch.igammac(torch.ones_like(h), h * h): "
    where = [[i for i, line in enumerate(lines) if text in line] for text in wanted]
    assert sorted(where) == [[0], [1]], "each has a line of its own"


class Resets(Cell):
    """Written where a mask is true, and fed back as one-hot vectors."""

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = h.clone()
            h[x[:, t, 0] > 0.5] = 0.0
            h = self.cell(x[:, t], h)
            h = h + torch.nn.functional.one_hot(h.argmax(1), H).to(h.dtype)
            out.append(h - h.median(1, keepdim=True).values)
        return torch.stack(out, 1)


class Memory(Cell):
    """Read by similarity, and bounded where autograd does not look."""

    def forward(self, x: Tensor) -> Any:
        h, memory, out = self.start(x), x.new_zeros(len(x), 3, N) + x[:, :1], []
        for t in range(x.shape[1]):
            weights = torch.nn.functional.cosine_similarity(memory, x[:, t, None], dim=-1).softmax(-1)
            memory = memory + weights[..., None] * x[:, t, None]
            h = self.cell((weights[..., None] * memory).sum(1), h) * 1.5
            with torch.no_grad():
                h.clamp_(-0.5, 0.5)
            out.append(h)
        return torch.stack(out, 1)


class Grid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 2, *x.shape[3:])
        for t in range(x.shape[1]):
            z, n = self.gates(torch.cat([x[:, t], h], 1)).chunk(2, 1)
            h = h + torch.sigmoid(z) * (torch.tanh(n) - h)
        return h


@pytest.mark.parametrize("cls", [Resets, Memory, Grid])
def test_becomes_a_scan(cls: type[nn.Module]) -> None:
    pair = Pair(cls())
    given = torch.randn(2, 12, 1, 4, 3).double() if cls is Grid else x()
    assert pair.strategies(given) == ["sequential"]
    for seed in range(2):
        pair.call(given, seed=seed)


class Noisy(Cell):
    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = torch.where(torch.rand_like(h) < 0.1, h, self.cell(x[:, t], h))
            out.append(torch.nn.functional.dropout(h, 0.2))
        return torch.stack(out, 1)


def test_a_prediction_counts_what_runs_beside_the_scan() -> None:
    pair = Pair(Noisy())
    for seed in range(3):
        (decision,) = pair.call(x(), seed=seed)
    assert "ops beside it, which PyTorch runs" in decision.reason
    scan = float(decision.numbers["PyTorch's"]) / float(decision.numbers["predicted ms"])
    assert decision.times_as_fast is not None
    assert 1 < decision.times_as_fast < scan


class Projected(Cell):
    """Parts of one projection are read by a loop that Python runs around, and its outputs are slices."""

    def __init__(self, width: int = H) -> None:
        super().__init__(width)
        self.project, self.calls = nn.Linear(N, 3 * H), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        q, k, v = self.project(x).chunk(3, -1)
        state, out = x.new_zeros(len(x), H, H), []
        for t in range(x.shape[1]):
            state = 0.9 * state + k[:, t, :, None] * v[:, t, None]
            out.append((q[:, t, None] @ state)[:, 0])
        return torch.stack(out, 1), q.sum()


def test_parts_of_one_tensor_beside_each_other() -> None:
    assert Pair(Projected()).strategies(x())[-1] != "pytorch"


@bppsa.loop
def decayed(state: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = []
    for t in range(k.shape[1]):
        state = 0.9 * state + torch.tanh(k[:, t] * v[:, t])
        out.append(state)
    return torch.stack(out, 1)


@pytest.mark.parametrize("start", [0, 1, H])
def test_parts_of_one_tensor_that_overlap(start: int) -> None:
    """Gradients of numbers that two arguments have in common come from both."""
    torch.manual_seed(0)
    for _ in range(3):
        whole = torch.randn(3, 8, 2 * H, dtype=torch.float64, requires_grad=True)
        found = []
        for run in (decayed.__wrapped__, decayed):
            given = whole * 1.0
            y = run(given.new_zeros(3, H), given[..., :H], given[..., start : start + H])
            found.append([y, *torch.autograd.grad(y.square().sum(), whole)])
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(theirs, ours)


class EitherWay(Cell):
    """Its own scan where it is asked for, and then a loop over what that gives."""

    scans = True

    def step(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(x, h)
        return h, h

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        if self.scans:
            return bppsa.scan(self.step, h, x.transpose(0, 1))[1]
        for t in range(x.shape[1]):
            h, y = self.step(h, x[:, t])
            out.append(y)
        return torch.stack(out)


def test_the_steps_of_a_scan_are_no_loop() -> None:
    pair = Pair(EitherWay())
    for _ in range(3):
        pair.call(x())
    (scan,) = bppsa.report(pair.fast).decisions
    assert (scan.kind, scan.strategy) == ("scan", "sequential")
    for model in (pair.fast, pair.plain):
        model.scans = False
    for _ in range(3):
        pair.call(x())
    assert pair.decisions()[0].kind == "loop"
