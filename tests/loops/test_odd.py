"""Loops that do odd things with memory, gradients and random numbers: whoever runs them, the numbers are PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.loops.beside import Pair, assert_alike
from tests.loops.cells import B, Cell, H, N, x

ODD: list[type[Cell]] = []


def odd(cls: type[Cell]) -> type[Cell]:
    ODD.append(cls)
    return cls


@odd
class Rolled(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        buf = x.new_zeros(x.shape[0], 3, H)
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            buf = torch.roll(buf, 1, 1)
            buf[:, 0] = h
            out.append(buf.sum(1))
        return torch.stack(out, 1)


@odd
class PartsInPlace(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            h = h.clone()
            h[:, :2] *= 0.5
            h[:, 2] = h[:, 2] + 1
            out.append(h)
        return torch.stack(out, 1)


@odd
class WithoutGradients(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = torch.zeros(x.shape[0], x.shape[1], H, dtype=x.dtype)
        for t in range(x.shape[1]):
            with torch.no_grad():
                z = self.cell(x[:, t], h) * 0.1
            h = self.cell(x[:, t], h) + z
            out[:, t] = h
            v = out[:, t]
            v.mul_(2)
        return out


@odd
class DetachedView(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            d = h.detach()
            h = h + 0
            out.append(h * d)
        return torch.stack(out, 1)


@odd
class ConstantsOfSteps(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = []
        for t in range(x.shape[1]):
            k = torch.tensor([float(t)], dtype=x.dtype)
            h = self.cell(x[:, t], h) * torch.cos(k) + torch.tensor(0.3)
            out.append(h)
        return torch.stack(out, 1), [o for o in out[:3]]


@odd
class ChangedAfterwards(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        out = []
        for t in range(x.shape[1]):
            if t > 0:
                x_t = 0.5 * (x[:, t] + x[:, t - 1])
            else:
                x_t = x[:, t]
            h = self.cell(x_t, h)
            out.append(h)
        y = torch.stack(out, 1)
        y[:, 0] = 0
        return y, out[-1], out[3]


@odd
class SoftmaxedWeights(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        w = torch.softmax(self.cell.weight_hh.sum(0), 0)
        out = []
        for t in range(x.shape[1]):
            h = self.cell(F.dropout(x[:, t], 0.1, self.training), h * w)
            out.append(h.max(1, keepdim=True).values)
        return torch.cat(out, 1), h


@odd
class DrawnMasks(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        cs = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            m = torch.rand(x.shape[0], 1, dtype=x.dtype) < 0.5
            h = torch.where(m, h, -h)
            cs.append(torch.rand(1, dtype=x.dtype) * h)
        return sum(cs), torch.randn(2)


@odd
class WrittenByMask(Cell):
    def forward(self, x: Tensor) -> Any:
        h = x[:, 0, :1].expand(-1, H)
        out = []
        for t in range(x.shape[1]):
            h = torch.clamp(self.cell(x[:, t], h), -0.3, 0.3)
            h[h > 0.2] = 0.1
            out.append(h)
        return torch.stack(out, 1)


@odd
class CoupledLayers(Cell):
    def forward(self, x: Tensor) -> Any:
        hs = [self.start(x) for _ in range(3)]
        out = []
        for t in range(x.shape[1]):
            for layer in range(3):
                hs[layer] = torch.tanh(self.cell(x[:, t], hs[layer]) + hs[layer - 1])
            out.append(torch.cat(hs, -1))
        return torch.stack(out, 1)


@odd
class ScalarState(Cell):
    def forward(self, x: Tensor) -> Any:
        h = self.start(x)
        a = x.new_zeros(())
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            a = 0.9 * a + h.mean()
            out.append(h * a)
        return torch.stack(out, 1)


@odd
class TwoStepsATurn(Cell):
    def forward(self, x: Tensor) -> Any:
        x = x.permute(1, 0, 2)
        h = self.start(x[0])
        out = []
        for t in range(0, x.shape[0] - 1, 2):
            h = self.cell(x[t], h)
            h = self.cell(x[t + 1], h)
            out += [h]
        return torch.stack(out).permute(1, 0, 2)


class Greedy(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2, N)

    def forward(self, token: Tensor) -> Any:
        h, out = torch.zeros(token.shape[0], H, dtype=self.head.weight.dtype), []
        for _ in range(12):
            h = self.cell(self.embed(token), h)
            scores = self.head(h)
            token = scores.argmax(-1)
            out.append(scores)
        return torch.stack(out, 1)


class Returned(Cell):
    """Each way of returning a state beside others."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h)
        y = torch.stack(out)
        return {"states": out, "last": [y, h, out[-1]], "view": [y, y[-1]], "input": [y, x[:, 0], x]}[self.which]


class State(NamedTuple):
    h: Tensor
    seen: list[Tensor]


@odd
class NamedState(Cell):
    def forward(self, x: Tensor) -> Any:
        state = State(self.start(x), [])
        for t in range(x.shape[1]):
            state = State(self.cell(x[:, t], state.h), [*state.seen, state.h])
        return state, torch.stack(state.seen, 1)


@odd
class PowersInPlace(Cell):
    """Of x.pow_(2) the op that returns it is none of the same name."""

    def forward(self, x: Tensor) -> Any:
        h, out = self.start(x), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            out.append(h.clone().pow_(2).pow_(h.abs() + 1))
        return torch.stack(out, 1)


@dataclass(frozen=True)
class Record:
    h: Tensor


@odd
class HeldByAnObject(Cell):
    def forward(self, x: Tensor) -> Any:
        state, out = Record(self.start(x)), []
        for t in range(x.shape[1]):
            state = Record(self.cell(x[:, t], state.h))
            out.append(state.h)
        return torch.stack(out, 1)


def test_an_object_beside_a_print_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop has to be taken alone, and what it hands on be known."""

    class Printed(HeldByAnObject):
        def forward(self, x: Tensor) -> Any:
            print("a call")
            state = Record(self.start(x))
            for t in range(x.shape[1]):
                state = Record(self.cell(x[:, t], state.h))
            return state.h

    pair = Pair(Printed())
    assert pair.strategies(x(16)) == ["pytorch"]
    assert "binds state, which holds a Record" in pair.decisions()[0].reason
    assert capsys.readouterr().out == "a call\n" * 6


@pytest.mark.parametrize("which", ["states", "last", "view", "input"])
def test_writes_to_what_is_returned(which: str) -> None:
    """They change what they would change without bppsa."""
    pair = Pair(Returned(which))
    given = x().detach()
    for _ in range(3):
        results = [model(given) for model in (pair.plain, pair.fast)]
        for i in range(len(results[0])):
            for result in results:
                with torch.no_grad():
                    result[i].mul_(1.5)
            for expected, found in zip(*results, strict=True):
                assert_alike(expected, found)
        given = torch.randn_like(given)


def test_tokens_that_a_loop_feeds_itself() -> None:
    pair = Pair(Greedy())
    for _ in range(4):
        decisions = pair.call(torch.randint(2, (B,)))
    assert [decision.strategy for decision in decisions] == ["sequential"]


class Counter(Cell):
    """Exact up to 2^53 in a kernel."""

    def forward(self, count: Tensor) -> Any:
        h = torch.zeros(len(count), H, dtype=self.head.weight.dtype)
        for _ in range(12):
            count = count + 1
            h = self.cell(self.head(h)[:, :1].expand(-1, N) + (count % 3).unsqueeze(1), h)
        return h, count


def test_numbers_too_large_for_a_kernel_are_pytorchs() -> None:
    pair = Pair(Counter())
    for _ in range(3):
        decisions = pair.call(torch.randint(100, (B,)))
    assert [decision.strategy for decision in decisions] == ["sequential"]
    (decision,) = pair.call(torch.randint(100, (B,)) + 2**53)
    assert decision.strategy == "pytorch"
    assert "whole numbers" in decision.reason
    assert pair.strategies(torch.randint(100, (B,))) == ["sequential"]


def test_an_empty_batch_is_pytorchs(recwarn: pytest.WarningsRecorder) -> None:
    (decision,) = Pair(Rolled()).call(x(16).detach()[:0])
    assert decision.strategy == "pytorch"
    assert "without elements" in decision.reason
    assert not [warning for warning in recwarn if "bppsa" in str(warning.message)]


@pytest.mark.parametrize("cls", ODD, ids=lambda cls: cls.__name__)
def test_odd_loop(cls: type[Cell]) -> None:
    torch.manual_seed(1)
    pair = Pair(cls())
    for seed in range(4):
        pair.call(x(16), seed=seed)
    assert pair.decisions()
