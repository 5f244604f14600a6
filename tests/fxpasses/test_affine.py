"""Which steps are affine maps of the carry, by the ops between the carry and the next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bppsa import cells
from bppsa.api.measuring import recurrence_of
from bppsa.frontend.planning.sweeps import module_recurrence, structure_of
from bppsa.fxpasses.cell.affine import is_affine

B, H = 2, 3
W, V = torch.randn(H, H), torch.rand(H)

STEPS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "of x alone": (lambda h, x: torch.sigmoid(x), True),
    "a number": (lambda h, x: V * h + x, True),
    "by x": (lambda h, x: torch.sigmoid(x) * h - 2 * x, True),
    "a product": (lambda h, x: h @ W + x, True),
    "a reset": (lambda h, x: torch.where(x > 0, 0.0, h) / (1 + x * x), True),
    "halves": (lambda h, x: torch.cat([h[:, 1:], h[:, :1]], 1) * x, True),
    "squared": (lambda h, x: h * h + x, False),
    "divided by": (lambda h, x: x / (1 + h * h), False),
    "tanh": (lambda h, x: torch.tanh(h) * x, False),
    "compared": (lambda h, x: V * h + (h > 0) * x, False),
    "chosen by": (lambda h, x: torch.where(h > 0, x, -x), False),
    "detached": (lambda h, x: V * h + torch.tanh(h.detach()) * x, False),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    step, affine = STEPS[name]

    def cell(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = step(h, x)
        return h, h

    assert is_affine(recurrence_of(cell, torch.zeros(B, H), torch.randn(4, B, H))) is affine


@pytest.mark.parametrize(
    ("name", "at_once"), [("MinGRU", True), ("DiagonalSSM", True), ("IndRNN", False), ("SRU", False)]
)
def test_cells(name: str, at_once: bool) -> None:
    cell = getattr(cells, name)(H, H)
    structure = structure_of(recurrence_of(cell, cell.initial(B), torch.randn(4, B, H)))
    assert structure.solves_at_once is at_once


def test_what_an_lstm_does_not_show_is_affine_where_the_rest_is_given() -> None:
    assert structure_of(module_recurrence("LSTM", 2, H, 0, True, 1)).solves_at_once
    assert not structure_of(module_recurrence("LSTM", 2, H, 0, True)).affine
