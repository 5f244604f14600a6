"""Modules with a strategy asked for: the scan really runs, says so, and gives PyTorch's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import bppsa
from bppsa import strategies
from bppsa.decisions import warn_once
from bppsa.errors import StrategyError
from bppsa.plan.levels import ScanPlan
from bppsa.plan.strategy import Strategy, divide
from bppsa.runtime.recurrent import backward
from tests.recurrent.support import KINDS, H, I, random
from tests.scan.support import leaves, same, weighted

T, B = 9, 3
SCANS = (strategies.chunked(length=4), strategies.blelloch(), strategies.hybrid(up_levels=2))


def gradients(model: nn.Module, x: Any, wanted: Any) -> list[torch.Tensor]:
    return list(torch.autograd.grad(weighted(leaves(model(x))), wanted))


@pytest.mark.parametrize("strategy", SCANS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_pytorch(kind: str, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plans: list[ScanPlan] = []
    exclusive = backward.exclusive
    monkeypatch.setattr(backward, "exclusive", lambda plan, *args: plans.append(plan) or exclusive(plan, *args))
    model = KINDS[kind](I, H, num_layers=2, bidirectional=True, batch_first=True).double()
    fast, x = bppsa.compile(model, strategy=strategy), random(B, T, I)
    same(gradients(fast, x, [x, *model.parameters()]), gradients(model, x, [x, *model.parameters()]))
    (decision,) = fast.report.decisions
    assert decision.strategy == str(strategy)
    assert decision.numbers["chunks"] == divide(strategy, T).count
    assert "dense" in decision.numbers["J^T"]
    assert plans == [divide(strategy, T).scan] * 4, "one scan for each layer and direction"


@pytest.mark.parametrize("strategy", SCANS, ids=str)
def test_packed_sequences(strategy: Strategy) -> None:
    torch.manual_seed(0)
    model, x = nn.LSTM(I, H, bidirectional=True).double(), random(T, B, I)
    fast = bppsa.compile(model, strategy=strategy)

    def packed() -> Any:
        return pack_padded_sequence(x, torch.tensor([4, T, 1]), enforce_sorted=False)

    got, expected = (gradients(m, packed(), [x, *model.parameters()]) for m in (fast, model))
    same(got, expected)
    assert fast.report.decisions[0].strategy == str(strategy)


def test_names_are_strategies_with_their_defaults() -> None:
    model, x = nn.GRU(I, H).double(), random(40, B, I)
    for name in ("chunked", "blelloch", "hybrid"):
        fast = bppsa.compile(model, strategy=name)
        same(gradients(fast, x, [x]), gradients(model, x, [x]))
        assert fast.report.decisions[0].strategy == name


def test_what_leaves_nothing_to_scan_is_sequential_and_says_why() -> None:
    model = nn.GRU(I, H).double()
    fast = bppsa.compile(model, strategy=strategies.chunked(length=100))
    fast(random(T, B, I))
    assert fast.report.decisions[0].strategy == "sequential"
    assert "9 steps are a single chunk" in str(fast.report)
    fast = bppsa.compile(model, strategy="blelloch")
    with torch.no_grad():
        fast(random(T, B, I))
    assert fast.report.decisions[0].strategy == "sequential"
    assert "without gradients" in str(fast.report)


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    for bad in ("fastest", "chunked(size=3)", 3, None, ["blelloch"], ""):
        with pytest.raises(StrategyError, match=r"auto, sequential, chunked, blelloch, hybrid"):
            bppsa.compile(nn.GRU(I, H), strategy=bad)  # type: ignore[arg-type]
    for bad, said in (
        ("chunked(length=0)", "length=0"),
        ("blelloch(length=3)", "no length"),
        ("auto(up_levels=1)", "no up"),
    ):
        with pytest.raises(StrategyError, match=said):
            bppsa.compile(nn.GRU(I, H), strategy=bad)
    with pytest.raises(StrategyError, match="length=0"):
        strategies.chunked(length=0)


def test_scans_within_a_model_follow_its_strategy() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = bppsa.cells.MinGRU(I, H)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return bppsa.scan(self.cell, self.cell.initial(B), x)[1]

    model, x = Model().double(), random(T, B, I)
    fast = bppsa.compile(model, strategy="blelloch")
    same(gradients(fast, x, [x, *model.parameters()]), gradients(model, x, [x, *model.parameters()]))
    fast(x)
    assert [d.strategy for d in fast.report.decisions] == ["blelloch"]
    assert fast.report.decisions[0].numbers["J^T"].startswith("diagonal")
    assert bppsa.explain(lambda: bppsa.scan(model.cell, model.cell.initial(B), x)).decisions[0].strategy == "sequential"
    chosen = bppsa.explain(lambda: bppsa.scan(model.cell, model.cell.initial(B), x, strategy="chunked"))
    assert chosen.decisions[0].strategy == "chunked"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_within_a_checkpoint(use_reentrant: bool) -> None:
    """Whose recomputation must save what the first call saved, also where that was the first of its kind."""
    model, x = nn.RNN(I, 7).double(), random(T, B, I)
    fast = bppsa.compile(model, strategy="blelloch")

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda z: fast(z)[0], x, use_reentrant=use_reentrant)

    checkpointed(x).square().sum().backward()
    got = x.grad
    (expected,) = torch.autograd.grad(model(x)[0].square().sum(), x)
    same([got], [expected])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_a_scan_without_memory_is_one_sweep(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    warn_once.cache_clear()
    model, x = nn.GRU(I, H).double(), random(T, B, I)
    fast = bppsa.compile(model, strategy="hybrid")

    def full(*args: Any) -> None:
        raise error

    monkeypatch.setattr(backward, "reduce", full)
    with pytest.warns(RuntimeWarning, match="hybrid needs more memory"):
        found = gradients(fast, x, [x, *model.parameters()])
    same(found, gradients(model, x, [x, *model.parameters()]))


def test_other_errors_of_a_scan_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(backward, "reduce", broken)
    with pytest.raises(RuntimeError, match="a mistake"):
        bppsa.compile(nn.GRU(I, H).double(), strategy="blelloch")(random(T, B, I))[0].sum().backward()


def test_the_report_of_a_graph_says_what_was_asked() -> None:
    assert (
        bppsa.compile(nn.GRU(I, H), strategy="blelloch", fallback="inductor").report.decisions[0].strategy == "blelloch"
    )
