"""The chunked forms beside which cells with matrix states are timed compute what the cells do."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bppsa.runtime.recurrent.reference import loop
from tests.scan.support import same

ROOT = Path(__file__).parents[2]


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("rows.states")


@pytest.mark.parametrize("name", ["gated linear attention", "DeltaNet", "Mamba-2"])
@pytest.mark.parametrize("length", [1, 4, 16])
def test_chunked_forms_are_the_recurrences(states: ModuleType, name: str, length: int) -> None:
    torch.manual_seed(0)
    made = states.CELLS[name](states.Sizes(10, 2, 3, 4, 5))
    carry, *xs = (t.double().detach().requires_grad_() for t in (made.carry, *made.xs))
    cotangent = torch.randn(10, 2, 3, 5, dtype=torch.float64)
    found = []
    for ys in (loop(made.cell, carry, tuple(xs))[1], states.PARALLEL[name](carry, *xs, length=length)):
        found.append([ys, *torch.autograd.grad(ys, (carry, *xs), cotangent)])
    same(*found, 1e-9)


def test_every_row_has_a_cell(states: ModuleType) -> None:
    """What is measured is a cell that is there, and every chunked form is measured."""
    options = states.Options(1, 2, True)
    assert {name for name, _ in states.cases(options)} <= states.CELLS.keys()
    assert {name for name, _ in states.beside_chunks(options)} == states.PARALLEL.keys()


@pytest.mark.slow
def test_what_a_step_costs_is_beside_what_it_must(states: ModuleType) -> None:
    """Work that has to be done takes no longer than what was measured."""
    options = states.Options(1, 2, True)
    (row,) = states.measure_states(states.cases(options)[0], options)
    assert row["kept_mb"] > 0
    assert 0 < row["flops_share"] < 1
    assert 0 < row["bytes_share"] < 1
