"""bppsa.scan with a parallel forward, cells of all kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bppsa
from bppsa import strategies
from bppsa.decisions import warn_once
from bppsa.frontend.call_log import collecting
from bppsa.runtime.recurrent.reference import loop
from tests.breadth import diagonal
from tests.scan.support import results, same
from tests.scan.zoo import CASES, B, Example, H, I, example, make, random

newton = functools.partial(bppsa.scan, forward=strategies.newton(2))


@pytest.mark.parametrize(("case", "reverse"), diagonal(CASES, [False, True]))
def test_every_cell(case: Callable[[], Example], reverse: bool) -> None:
    with collecting() as taken:
        got = results(newton, make(case), reverse=reverse)
    expected = results(loop, make(case), reverse=reverse)
    same(got[0], expected[0])
    same(got[1], expected[1])
    assert taken[-1].numbers["fallbacks"] == 0


def test_a_linear_cell_needs_one_iteration() -> None:
    """Its Jacobian does not depend on the state."""
    cell = bppsa.cells.MinGRU(I, H).double()
    x = random(40, B, I)
    with collecting() as taken:
        ys = bppsa.scan(cell, cell.initial(B), x, forward="newton")[1]
    same([ys], [loop(cell, cell.initial(B), x)[1]])
    assert taken[-1].numbers["iterations"] == 1


def test_within_a_compiled_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = bppsa.cells.IndRNN(I, H).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ys: torch.Tensor = bppsa.scan(self.cell, self.cell.initial(B), x)[1]
            return ys

    model, x = Model(), random(12, B, I)
    fast = bppsa.compile(model, forward=strategies.newton(3))
    same([fast(x)], [model(x)])
    assert fast.report.decisions[0].numbers["fallbacks"] == 0
    assert "newton(length=3)" in fast.report.decisions[0].reason


def test_what_cannot_be_fused_says_so() -> None:
    unfused = example(lambda h, x: (torch.igamma(torch.ones_like(h), h * h) + x,) * 2, random(B, H), random(4, B, H))
    warn_once.cache_clear()
    with (
        collecting() as taken,
        pytest.warns(RuntimeWarning, match=r"without forward newton\(length=2\): .*: aten.igamma"),
    ):
        got = results(newton, unfused)
    same(got[0], results(loop, unfused)[0])
    assert taken[-1].strategy == "pytorch"
