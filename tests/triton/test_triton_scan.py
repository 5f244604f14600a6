"""A whole backward in chunks by Triton's kernels, against one sweep over all steps by the interpreter."""

from __future__ import annotations

import pytest
import torch

from bppsa import strategies
from bppsa.codegen.gpu import native_scan
from bppsa.frontend.planning.sweeps import compile_recurrence
from bppsa.plan.levels import linear
from bppsa.plan.strategy import Division, Strategy
from bppsa.runtime.recurrent.backward import Asked, backward
from bppsa.runtime.recurrent.multiple_shooting import AsRows, InPlace
from bppsa.runtime.recurrent.scan.extent import Extent
from bppsa.runtime.recurrent.sweep import Gradients, Needs, Sweep
from tests.codegen.programs import Operands, operands, packed
from tests.scan.support import interpreted, same
from tests.triton import needed
from tests.triton.models import MODELS

needed.triton()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Triton's interpreter runs them
EXTENTS = [Extent(5, 2), Extent(7, 3, reverse=True), packed([6, 3, 1]), packed([5, 5], reverse=True)]
STRATEGIES = [strategies.chunked(2), strategies.chunked(4), strategies.blelloch(), strategies.hybrid(1)]


def run(sweep: Sweep, given: Operands, extent: Extent, strategy: Strategy) -> Gradients:
    passed = sweep.forward(given.sources, given.carries, given.params, extent, save=True)
    needs = Needs([True] * len(given.sources), [True] * len(given.params))
    cotangents = given.g_outputs, given.g_finals
    asked = Asked(passed, given.sources, given.params, *cotangents, extent, needs)
    return backward(sweep, strategy, asked)


def on_device(given: Operands, dtype: torch.dtype) -> Operands:
    return Operands(*([t.to(DEVICE, dtype) for t in tensors] for tensors in vars(given).values()))


def check(model: str, H: int, extent: Extent, strategy: Strategy, dtype: torch.dtype, tolerance: float) -> None:
    recurrence = MODELS[model](H)
    given = operands(recurrence, extent)
    expected = run(interpreted(recurrence), given, extent, strategies.sequential())
    there = Extent(extent.steps, extent.rows, extent.reverse, extent.active, extent.lengths, DEVICE)
    found = run(compile_recurrence(recurrence, dtype, False, "cuda"), on_device(given, dtype), there, strategy)
    for ours, theirs in ((found.sources, expected.sources), (found.carries, expected.carries)):
        same([None if g is None else g.cpu().double() for g in ours], theirs, tolerance)
    same([None if g is None else g.cpu().double() for g in found.params], expected.params, tolerance)


@pytest.mark.parametrize("extent", EXTENTS, ids=["", "reverse", "packed", "packed-reverse"])
@pytest.mark.parametrize("model", ["RNN", "GRU", "LSTM", "LSTM, projected", "ResetGRU", "MinGRU", "IndRNN"])
def test_in_chunks(model: str, extent: Extent) -> None:
    check(model, 3, extent, strategies.chunked(2), torch.float64, 1e-10)


@pytest.mark.parametrize("extent", EXTENTS, ids=["", "reverse", "packed", "packed-reverse"])
@pytest.mark.parametrize("model", ["RNN", "GRU", "LSTM", "ResetGRU"])
def test_columns_that_share_a_sample(model: str, extent: Extent) -> None:
    """A program of the reduction takes 16 of them, and of the last few fewer."""
    check(model, 15, extent, strategies.chunked(2), torch.float64, 1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("extent", EXTENTS, ids=["", "reverse", "packed", "packed-reverse"])
@pytest.mark.parametrize("model", ["GRU", "ResetGRU", "MinGRU"])
def test_every_plan(model: str, strategy: Strategy, extent: Extent) -> None:
    check(model, 4, extent, strategy, torch.float64, 1e-10)


@pytest.mark.parametrize("H", [1, 17, 20])
@pytest.mark.parametrize("model", ["RNN", "GRU", "LSTM"])
def test_in_float32(model: str, H: int) -> None:
    check(model, H, Extent(5, 2), strategies.chunked(2), torch.float32, 1e-4)


def test_wide_states_scan_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose M is more than a program holds."""
    monkeypatch.setattr(native_scan, "WIDEST", 3)
    check("GRU", 5, Extent(6, 2), strategies.chunked(2), torch.float64, 1e-10)


@pytest.mark.parametrize("strategy", [strategies.chunked(50), strategies.chunked(16), strategies.blelloch()], ids=str)
def test_the_weak_side_of_a_product_survives(strategy: Strategy) -> None:
    """diag(2, 1/2) over 100 steps in float32: the product has entries of 2^100 and 2^-100 in every chunk's M."""
    matrix = torch.diag(torch.tensor([2.0, 0.5]))
    recurrence = MODELS["linear"](2)
    steps, zeros = 100, torch.zeros(100, 2, 2)
    given = Operands([zeros], [zeros[0]], [matrix], [zeros], [torch.eye(2)])
    extent = Extent(steps, 2, device=DEVICE)
    sweep = compile_recurrence(recurrence, torch.float32, False, "cuda")
    gradient = run(sweep, on_device(given, torch.float32), extent, strategy).sources[0]
    assert gradient is not None
    expected = torch.tensor([2.0, 0.5], dtype=torch.float64) ** (steps - 1)
    assert ((gradient[0].diagonal().cpu().double() / expected - 1).abs() <= 1e-5).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM", "ResetGRU", "IndRNN"])
def test_newtons_corrections(name: str, reverse: bool) -> None:
    """In one launch what torch's ops compute chunk by chunk."""
    recurrence, extent = MODELS[name](3), Extent(7, 2, reverse, device=DEVICE)
    sweep = compile_recurrence(recurrence, torch.float64, False, "cuda")
    given = on_device(operands(recurrence, extent), torch.float64)
    division = Division(2, 4, linear(4))
    shots = InPlace(sweep, sweep.reduction(), division, given.sources, given.carries, given.params, extent)
    shots.run(torch.randn_like(shots.start()))
    residual = torch.randn_like(shots.start())
    found = shots.corrections(residual)
    sweep.corrections, kernel = None, sweep.corrections
    try:
        expected = shots.corrections(residual)
    finally:
        sweep.corrections = kernel
    same([found], [expected], 1e-12)


@pytest.mark.parametrize("steps", [6, 7])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["GRU", "LSTM", "MinGRU", "LayerNormLSTM"])
def test_chunks_of_a_forward_in_place_are_those_cut_to_rows(name: str, reverse: bool, steps: int) -> None:
    recurrence, extent = MODELS[name](3), Extent(steps, 2, reverse, device=DEVICE)
    sweep = compile_recurrence(recurrence, torch.float64, False, "cuda")
    given = on_device(operands(recurrence, extent), torch.float64)
    division = Division(2, -(-steps // 2), linear(-(-steps // 2)))
    call = sweep, sweep.reduction(), division, given.sources, given.carries, given.params, extent
    found, expected = InPlace(*call), AsRows(*call)
    entering = torch.randn_like(found.start())
    same([found.run(entering)], [expected.run(entering)], 1e-12)
    residual = torch.randn_like(entering)
    same([found.corrections(residual)], [expected.corrections(residual)], 1e-12)
    ours, theirs = (shots.result(save=True) for shots in (found, expected))
    assert list(ours.private) == list(theirs.private)
    same([*ours.states, *ours.outputs, *ours.finals], [*theirs.states, *theirs.outputs, *theirs.finals], 1e-12)
    same(list(ours.private.values()), list(theirs.private.values()), 1e-12)
