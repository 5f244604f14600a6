"""What the planner is given of modules and cells, whose record it predicts with, and what `bppsa.measure` finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bppsa
from bppsa import cells
from bppsa.api import measuring
from bppsa.codegen.cpu.build import available
from bppsa.decisions import Decision
from bppsa.errors import MachineError
from bppsa.frontend.planning import rates
from bppsa.frontend.planning.predict import choose_scan, counts_of
from bppsa.frontend.planning.sweeps import module_recurrence
from bppsa.frontend.rnn.recurrent import decide
from bppsa.frontend.rnn.spec import Spec
from bppsa.plan.forward import AUTO as AHEAD
from bppsa.plan.forward import SEQUENTIAL, Forward
from bppsa.plan.machines import SHIPPED
from bppsa.plan.strategy import AUTO, Strategy

needs_compiler = pytest.mark.skipif(available() is not None, reason="needs a C++ compiler")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
MODULES = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None of this machine's, and none left for others; kernels stay where they are."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(rates.cache, "read", kept.get)
    monkeypatch.setattr(rates.cache, "write", kept.__setitem__)
    monkeypatch.delenv(rates.VARIABLE, raising=False)
    monkeypatch.setattr(rates, "_measured", {})
    forget()
    yield
    forget()


def forget() -> None:
    for cached in (rates.machine_of, decide, choose_scan):
        cached.cache_clear()


# ---- counts


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("rows", [1, 16])
def test_products_of_a_module_are_all_counted_once(kind: str, rows: int) -> None:
    """With few rows x @ W_ih stands before the sweep, with many within it."""
    inputs, hidden, gates = 30, 20, GATES[kind]
    (counts,) = Spec.of(MODULES[kind](inputs, hidden)).counts(torch.float32, rows, "cpu")
    assert counts.before.count == (rows == 1)
    forward = counts.forward.flops + counts.before.each.flops
    assert forward == pytest.approx(2 * gates * hidden * (inputs + hidden), rel=0.2), "and pointwise work"
    backward = counts.backward.flops + counts.after.each.flops
    assert backward == pytest.approx(2 * 2 * gates * hidden * (inputs + hidden), rel=0.2)
    assert counts.after.count == 3, "gradients of x, W_ih and W_hh"
    assert counts.weights == 4 * gates * hidden * (inputs + hidden)
    assert counts.width == hidden * (2 if kind == "LSTM" else 1)


def test_layers_and_directions_are_counted_each() -> None:
    spec = Spec.of(nn.GRU(5, 7, num_layers=2, bidirectional=True))
    first, second, third, fourth = spec.counts(torch.float32, 4, "cpu")
    assert (first, third) == (second, fourth)
    assert third.weights > first.weights, "the second layer reads both directions of the first"


def test_float64_counts_twice() -> None:
    single, double = (Spec.of(nn.GRU(5, 7)).counts(dtype, 4, "cpu")[0] for dtype in (torch.float32, torch.float64))
    assert double.forward.flops == 2 * single.forward.flops
    assert double.forward.bytes == 2 * single.forward.bytes
    assert double.weights == 2 * single.weights


def test_programs_of_a_gpu_take_tiles_of_rows() -> None:
    recurrence = module_recurrence("GRU", 5, 20, 0, True)
    counts = counts_of(recurrence, torch.float32, False, "cuda", "GRU")
    assert counts.tile == 16
    assert counts.pieces(17) == 2 * counts.warps


# ---- choices


def test_one_step_of_an_lstm_is_ours_and_of_an_rnn_pytorchs() -> None:
    """PyTorch takes long to start an LSTM, and an RNN is over before a sweep has begun."""
    for training in (True, False):
        taken = [
            decide("", AUTO, Spec.of(kind(20, 20)), 1, 1, torch.float32, training, "cpu").strategy
            for kind in (nn.LSTM, nn.RNN)
        ]
        assert taken == ["sequential", "pytorch"]


def on_h200(kind: type[nn.RNNBase], steps: int, hidden: int, name: str = "auto", *, rows: int = 16) -> Decision:
    of = Spec.of(kind(hidden, hidden)), steps, rows, torch.float32, True, "cuda", Forward(name)
    return decide("", AUTO, *of, library=True)


def test_on_a_gpu_the_backward_goes_on_from_cudnns_forward() -> None:
    """Of long sequences; short ones, and where J^T is wide, are cuDNN's."""
    long = on_h200(nn.GRU, 10_000, 20)
    assert (long.strategy, long.forward) == ("chunked", "pytorch")
    assert "; forward pytorch: PyTorch's own predicted" in long.reason
    assert on_h200(nn.LSTM, 30_000, 20).forward == "pytorch"
    for left in (on_h200(nn.GRU, 300, 20), on_h200(nn.GRU, 1200, 20), on_h200(nn.LSTM, 30_000, 64)):
        assert (left.strategy, left.forward) == ("pytorch", "sequential")


def test_weights_that_a_program_of_a_gpu_does_not_keep_are_cudnns() -> None:
    found = on_h200(nn.GRU, 30_000, 128, rows=1)
    assert found.strategy == "pytorch"
    assert "weights" in found.reason
    asked = decide("", Strategy("chunked"), Spec.of(nn.GRU(128, 128)), 300, 1, torch.float32, True, "cuda")
    assert asked.strategy == "chunked"


def test_every_forward_is_predicted() -> None:
    found = decide("", AUTO, Spec.of(nn.GRU(20, 20)), 100, 16, torch.float32, True, "cuda", AHEAD, True, library=True)
    assert found.machine.startswith("NVIDIA H200")
    strategies = {"pytorch", "sequential", "chunked", "blelloch", "hybrid"}
    assert set(found.predicted) == strategies | {"newton + chunked", "pytorch + chunked"}


def test_the_forward_is_chosen_by_the_same_record() -> None:
    """Of a GPU: Newton's where it is long enough to pay, and only there."""

    def found(steps: int, name: str) -> Decision:
        spec = Spec.of(nn.RNN(20, 20))
        return decide("", Strategy("chunked"), spec, steps, 16, torch.float32, True, "cuda", Forward(name))

    long, short, none = found(30_000, "auto"), found(100, "auto"), found(30_000, "sequential")
    assert (long.forward, short.forward, none.forward) == ("newton", "sequential", "sequential")
    assert "forward newton: Newton's iteration predicted" in long.reason
    assert "forward" not in short.reason + none.reason
    assert found(100, "newton").forward == "newton"


def test_the_forward_of_a_cell_knows_how_its_jacobian_looks() -> None:
    """A diagonal one costs little; without gradients too."""
    cell = cells.MinGRU(64, 64)
    diagonal = measuring.recurrence_of(cell, cell.initial(2), torch.randn(4, 2, 64))
    dense = module_recurrence("GRU", 64, 64, 0, True)
    taken = [
        choose_scan(each, torch.float32, AUTO, 30_000, 16, False, "cuda", Forward("auto"), False).forward
        for each in (diagonal, dense)
    ]
    assert taken == ["newton", "sequential"]


def test_a_long_diagonal_scan_on_a_gpu_runs_in_chunks() -> None:
    cell = cells.MinGRU(8, 8)
    found = measuring.recurrence_of(cell, cell.initial(2), torch.randn(4, 2, 8))
    long, short = (
        choose_scan(found, torch.float32, AUTO, steps, 2, True, "cuda", SEQUENTIAL, False).strategy
        for steps in (10_000, 4)
    )
    assert (long, short) == ("chunked", "sequential")
    assert choose_scan(found, torch.float32, AUTO, 10_000, 2, True, "cpu", SEQUENTIAL, False).strategy == "sequential"
    assert choose_scan(found, torch.float32, AUTO, 1, 2, True, "cpu", SEQUENTIAL, False).strategy == "pytorch"


def test_a_scan_of_one_step_is_the_loop_and_says_so() -> None:
    cell = cells.MinGRU(8, 8)
    carry, x = cell.initial(2), torch.randn(1, 2, 8)
    report = bppsa.explain(lambda: bppsa.scan(cell, carry, x))
    (decision,) = report.decisions
    assert decision.strategy == "pytorch"
    assert decision.predicted["pytorch"] < decision.predicted["sequential"]
    assert str(report).splitlines()[2].startswith("    predicted ms: pytorch ")
    (y,) = bppsa.scan(cell, carry, x)[1]
    torch.testing.assert_close(y, cell(carry, x[0])[1])


# ---- records


def test_the_shipped_record_is_the_default() -> None:
    assert rates.machine_of("cpu") is SHIPPED["cpu"]
    assert rates.machine_of("cuda") is SHIPPED["cuda"]


def test_a_file_overrides_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = replace(SHIPPED["cpu"], name="mine")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(mine.as_json()))
    monkeypatch.setenv(rates.VARIABLE, str(path))
    assert rates.machine_of("cpu") == mine
    assert rates.machine_of("cuda") is SHIPPED["cuda"], "a record is one device's"


@pytest.mark.parametrize("content", [None, "", "[]", '{"name": "x"}', '{"name": 1, "rates": {"forward": {}}}'])
def test_a_file_that_is_no_record_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(rates.VARIABLE, str(path))
    with pytest.raises(MachineError, match=r"BPPSA_MACHINE=.*broken\.json is no record"):
        rates.machine_of("cpu")


# ---- measuring


def test_only_what_is_there_can_be_measured() -> None:
    with pytest.raises(MachineError, match="no device 'tpu' to measure"):
        bppsa.measure("tpu")


@needs_compiler
def test_what_was_measured_is_kept_and_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"SHAPES": {"cpu": ((3, 2, 4),)}, "SCANNED": {"cpu": ((12, 1, 4),)}}
    small |= {"LOOPED": ((2, 1, 4),), "REPEATS": 1}
    for name, value in small.items():
        monkeypatch.setattr(measuring, name, value)
    monkeypatch.setattr(measuring, "MODULES", {"GRU": nn.GRU})
    before = decide(
        "", Strategy("sequential"), Spec.of(nn.GRU(4, 4)), 9, 2, torch.float32, True, "cpu", SEQUENTIAL, True
    )
    measured = bppsa.measure()
    assert measured.source == "measured"
    assert measured.rates["GRU forward"] != SHIPPED["cpu"].rates["GRU forward"]
    assert measured.rates["LSTM forward"] == SHIPPED["cpu"].rates["LSTM forward"], "no call told of it"
    assert rates.machine_of("cpu") == measured
    monkeypatch.setattr(rates, "_measured", {})  # as in a later process
    forget()
    assert rates.machine_of("cpu") == measured
    after = decide(
        "", Strategy("sequential"), Spec.of(nn.GRU(4, 4)), 9, 2, torch.float32, True, "cpu", SEQUENTIAL, True
    )
    assert before.predicted != after.predicted
    assert after.machine == str(measured)


def test_a_module_that_was_called_follows_what_is_measured_later() -> None:
    model, x = bppsa.compile(nn.GRU(8, 8)), torch.randn(40, 2, 8)
    told = []
    for margin in (None, 1e6):  # with which PyTorch is as good as always faster
        if margin is not None:
            rates.keep(replace(rates.machine_of("cpu"), margin=margin))
            decide.cache_clear()
        for _ in range(2):
            model(x)
            told.append(bppsa.report(model).decisions[-1].strategy)
    assert told == ["sequential", "sequential", "pytorch", "pytorch"]
