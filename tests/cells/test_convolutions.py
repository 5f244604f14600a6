"""Cells whose state is a grid of channels: a convolution of the carry is part of the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.cells.support import B, Cell, T, fuses, random

C, SIZE = 2, 4
torch.manual_seed(0)
GATES = nn.Conv2d(2 * C, 4 * C, 3, padding=1).double()
FROM_X, FROM_H = nn.Conv2d(C, 2 * C, 3, padding=1).double(), nn.Conv2d(C, 2 * C, 3, padding=1, bias=False).double()
NEW = nn.Conv2d(2 * C, C, 1).double()
DEPTHWISE = nn.Conv1d(C, C, 3, padding=2, dilation=2, groups=C).double()
STRIDED = nn.Conv1d(C, 2 * C, 2, stride=2, groups=2).double()
LAPLACE = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]).double().view(1, 1, 3, 3)


def lstm(state: Any, x: Tensor) -> Any:
    h, c = state
    i, f, g, o = GATES(torch.cat([x, h], 1)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h, c), h


def gru(h: Tensor, x: Tensor) -> Any:
    r, z = torch.sigmoid(FROM_X(x) + FROM_H(h)).chunk(2, 1)
    h = (1 - z) * h + z * torch.tanh(NEW(torch.cat([x, r * h], 1)))
    return h, h


def diffusion(u: Tensor, x: Tensor) -> Any:
    """A stencil, around the corner."""
    wrapped = functional.pad(u, (1, 1, 1, 1), mode="circular")
    u = u + 0.1 * functional.conv2d(wrapped, LAPLACE.expand(C, 1, 3, 3), groups=C) + 0.1 * x * (1 - u * u)
    return u, u.mean((2, 3))


def dilated(h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(DEPTHWISE(h) + x)
    return h, STRIDED(h).relu()


def grid(*sizes: int) -> Tensor:
    return random(B, C, *sizes), random(T, B, C, *sizes)


@pytest.mark.parametrize("cell", [gru, diffusion])
def test_of_a_plane(cell: Cell) -> None:
    parameters = [*FROM_X.parameters(), *FROM_H.parameters(), *NEW.parameters()] if cell is gru else []
    fuses(cell, *grid(SIZE, SIZE - 1), *parameters)


TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {"padding": 1},
    "strided": {"stride": 2, "padding": 2, "output_padding": 1},
    "dilated": {"dilation": 2, "padding": 2},
    "cutting": {"stride": 3, "padding": 3, "output_padding": 2},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str) -> None:
    weight, bias, grouped = random(C, C, 3), random(C), random(C, 1, 2, 3)

    def cell(h: Tensor, x: Tensor) -> Any:
        up = functional.conv_transpose1d(h, weight, bias, **TRANSPOSED[name])
        plane = functional.conv_transpose2d(h.view(-1, C, 2, 2), grouped, groups=C, stride=(2, 1), padding=(1, 0))
        h = torch.tanh(up.mean(2, keepdim=True) + functional.pad(up, (0, SIZE - up.shape[2])) + x)
        return h, plane.sum((2, 3)) + h[..., 0]

    fuses(cell, *grid(SIZE), weight, bias, grouped)


def test_sizes_in_tuples_of_one() -> None:
    weight = random(C, C, 3, 3)

    def cell(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(functional.conv2d(h, weight, None, (1,), (1,)) + x)
        return h, h

    fuses(cell, *grid(SIZE, SIZE - 1), weight)


def test_of_two_states() -> None:
    h, x = grid(SIZE - 1, SIZE)
    fuses(lstm, (h, random(B, C, SIZE - 1, SIZE)), x, *GATES.parameters())


def test_dilated_strided_and_by_groups() -> None:
    fuses(dilated, *grid(SIZE), *DEPTHWISE.parameters(), *STRIDED.parameters())
