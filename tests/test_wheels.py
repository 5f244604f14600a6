"""A wheel holds the kernels that a call asks for."""

from __future__ import annotations

import ctypes
import shutil

import pytest
import torch

import bppsa
from bppsa import cells
from bppsa.codegen.cpu import build
from wheels import kernels

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def test_a_call_that_keeps_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def library(source: str) -> ctypes.CDLL:
        asked.add(source)
        return original(source)

    original = build.library
    monkeypatch.setattr(build, "library", library)
    cell, x = cells.mLSTM(32, 32), torch.randn(400, 20, 32)  # 9.3 MB of states
    fast = bppsa.compile(Repeated(cell))
    fast(x).sum().backward()
    assert "states kept" in str(bppsa.report(fast))
    plan = kernels.planned(cell, 32, None)
    shipped = {text for inline in (False, True) for text in kernels.of_recurrence(plan, inline, "float")}
    assert asked
    assert asked <= shipped | {text for _, text in kernels.engines()}


class Repeated(torch.nn.Module):
    def __init__(self, cell: cells.Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return bppsa.scan(self.cell, self.cell.initial(x.shape[1]), x, strategy="sequential")[1]
