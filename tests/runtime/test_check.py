"""BPPSA_CHECK=1: right backwards pass by every strategy, a broken one is named, and unasked nothing is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa
from bppsa import cells, strategies
from bppsa.codegen.cpu.build import available
from bppsa.errors import BppsaError, GradientError
from bppsa.plan.strategy import Strategy
from bppsa.runtime.recurrent import check
from bppsa.runtime.recurrent.programs.stack import StackPrograms
from bppsa.runtime.recurrent.sweep import Gradients, Sweep

pytestmark = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")

T, B, I, H = 6, 3, 5, 11  # noqa: E741  of tests/recurrent, which share the kernels
STRATEGIES = (strategies.sequential(), strategies.chunked(2), strategies.blelloch(), strategies.hybrid(1))
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Asks for the check; the comparisons that it makes."""
    monkeypatch.setenv("BPPSA_CHECK", "1")
    made: list[Any] = []
    compare = check.compare
    monkeypatch.setattr(check, "compare", lambda *args: made.append(args) or compare(*args))
    return made


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def breaking(monkeypatch: pytest.MonkeyPatch, change: Callable[[Gradients], None]) -> None:
    """Every backward sweep's gradients, changed."""
    backward = Sweep.backward

    def broken(self: Sweep, *args: Any) -> Gradients:
        found = backward(self, *args)
        change(found)
        return found

    in_programs = StackPrograms.backward

    def broken_in_programs(self: StackPrograms, *args: Any) -> list[Tensor | None]:
        found, first = in_programs(self, *args), sum(self.leading)
        change(Gradients(found[:1], [g for g in found[1:first] if g is not None], found[first:]))
        return found

    monkeypatch.setattr(Sweep, "backward", broken)
    monkeypatch.setattr(StackPrograms, "backward", broken_in_programs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_modules_pass(kind: Any, strategy: Strategy, dtype: torch.dtype, compared: list[Any]) -> None:
    torch.manual_seed(0)
    model = kind(I, H, num_layers=2, bidirectional=True, dropout=0.3, dtype=dtype)
    fast, x = bppsa.compile(model, strategy=strategy), leaf(T, B, I, dtype=dtype)
    fast(x)[0].square().sum().backward()
    packed = pack_padded_sequence(x, torch.tensor([4, T, 1]), enforce_sorted=False)
    fast(packed)[0].data.square().sum().backward()
    assert len(compared) == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_scans_pass(strategy: Strategy, dtype: torch.dtype, compared: list[Any]) -> None:
    torch.manual_seed(0)
    cell, xs, resets = cells.ResetGRU(I, H).to(dtype), leaf(T, B, I, dtype=dtype), torch.rand(T, B) < 0.3
    h, ys = bppsa.scan(cell, leaf(B, H, dtype=dtype), (xs, resets), strategy=strategy)
    (h.sum() + ys.square().sum()).backward()
    assert len(compared) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_what_is_not_finite_passes_where_pytorch_has_it(strategy: Strategy, value: float, compared: list[Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(T, B, I, dtype=torch.float64)
    x[2, 1, 0] = value
    fast = bppsa.compile(nn.LSTM(I, H).double(), strategy=strategy)
    fast(x.requires_grad_())[0].sum().backward()
    assert len(compared) == 1


def scaled(gradient: Tensor | None) -> None:
    assert gradient is not None
    gradient *= 1.01


BROKEN = {
    "input 0 [6, 3, 5]": lambda found: scaled(found.sources[0]),
    "initial carry 0 [1, 3, 11]": lambda found: scaled(found.carries[0]),
    "weight 1 [33, 11]": lambda found: scaled(found.params[1]),
}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("which", BROKEN)
def test_a_wrong_gradient_is_named(which: str, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    breaking(monkeypatch, BROKEN[which])
    fast = bppsa.compile(nn.GRU(I, H).double(), strategy=strategy)
    with pytest.raises(GradientError) as caught:
        fast(leaf(T, B, I), leaf(1, B, H))[0].square().sum().backward()
    said = str(caught.value)
    assert f"the gradient of {which} differs from PyTorch's by 1.0e-02 in relative norm" in said
    assert f"strategy was {strategy};" in said
    assert all(words in said for words in ("report it", "without bppsa"))
    assert ('with strategy="sequential"' in said) == (strategy.name != "sequential"), "what ran is no way out"
    assert isinstance(caught.value, (BppsaError, RuntimeError))


def test_a_wrong_gradient_of_a_scan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda found: scaled(found.carries[0]))
    cell = cells.MinGRU(I, H)
    with pytest.raises(GradientError, match=r"initial carry 0 \[3, 11\] differs .*1e-03 in float32.* in float64"):
        bppsa.scan(cell, leaf(B, H, dtype=torch.float32), torch.randn(T, B, I))[1].sum().backward()


def spoiled(place: tuple[int, ...], value: float) -> Callable[[Gradients], None]:
    def change(found: Gradients) -> None:
        assert found.sources[0] is not None
        found.sources[0][place] = value

    return change


NOT_FINITE: Sequence[tuple[tuple[int, ...], float, str]] = (
    ((0, 2, 0), math.nan, "is not finite in 1 places of sequences in which PyTorch's is everywhere"),
    ((2, 1, 0), 0.0, "is finite in 1 places where PyTorch's is not"),
    ((5, 1, 0), math.inf, ""),
)


@pytest.mark.parametrize(("place", "value", "said"), NOT_FINITE)
def test_what_is_not_finite_stays_in_its_sequence(
    place: tuple[int, ...], value: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NaN enters as the cotangent of step 2 in row 1: all steps up to it have it, in that row."""
    breaking(monkeypatch, spoiled(place, value))
    x, cotangent = leaf(T, B, I), torch.ones(T, B, H).double()
    cotangent[2, 1] = math.nan
    y = bppsa.compile(nn.GRU(I, H).double(), strategy="sequential")(x)[0]
    if said:
        with pytest.raises(GradientError, match=said):
            y.backward(cotangent)
    else:
        y.backward(cotangent)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_unasked_nothing_is_compared(value: str | None, compared: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BPPSA_CHECK")
    if value is not None:
        monkeypatch.setenv("BPPSA_CHECK", value)
    breaking(monkeypatch, lambda found: scaled(found.sources[0]))
    bppsa.compile(nn.GRU(I, H), strategy="sequential")(leaf(T, B, I, dtype=torch.float32))[0].sum().backward()
    assert not compared
