"""Cells that write to diagonals and through chains of views: as the loop has it, values and all gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.scan.test_in_place import SCALE, WIDTH, cell_of, compare
from tests.scan.zoo import Example, h, x


def diagonals(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Of a matrix for each row: jitter, and one beside the middle of what is a part itself."""
    outer = h.unsqueeze(2) * x.unsqueeze(1)
    outer.diagonal(dim1=-2, dim2=-1).add_(0.01)
    outer[:, :, 1:].diagonal(-2, dim1=2, dim2=1)[:, 1:].mul_(x[:, :2])
    return outer.sum(2), torch.diagonal_scatter(outer, h[:, 1:], 1, 1, 2), torch.select_scatter(outer, h, 2, -1)


def filled_diagonal(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    tall = torch.zeros(2 * WIDTH + 2, WIDTH, dtype=h.dtype).fill_diagonal_(0.5, wrap=True)
    square = torch.ones(WIDTH, WIDTH, dtype=h.dtype).fill_diagonal_(0.1)
    return h @ square, (SCALE * tall).fill_diagonal_(2.0).sum(0) * h * x


def through_chains(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Of views that turn, divide and join dimensions."""
    g = x * h
    g.view(-1, 2, 3).transpose(1, 2)[:, 0].copy_(x[:, :2])
    g.view(-1, 2, 3).permute(0, -1, 1)[..., 1].unsqueeze(1).squeeze(1).mul_(h[:, :1])
    g.t().t().t()[1].mul_(2)
    return (g,)


def of_what_is_made_anew(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    move, scale = torch.eye(WIDTH, dtype=h.dtype), torch.linspace(0, 1, WIDTH, dtype=h.dtype)
    move[0, 2] = 0.1
    scale[1:] += 0.5
    return h @ move * scale + x, torch.zeros(WIDTH, dtype=h.dtype).detach() + h


def of_detached_zeros(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    zeros = torch.zeros(WIDTH, dtype=h.dtype)
    zeros.detach().add_(1.0)
    return (h * x + zeros,)


def turned_after_a_view(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """What the view was a part of looks another way now."""
    g = (x * h).view(-1, 2, 3)[:, :, :2] * 1.0
    first = g[:, :1]
    g.transpose_(1, 2)
    first.mul_(2)
    return h * g.sum(2).sum(1, keepdim=True), first.flatten(1) * 1.0


def of_what_is_squeezed(h: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Of every dimension of one item."""
    g, gate = x * h, torch.sigmoid(h.sum(1, keepdim=True).squeeze())
    g[:, None, :, None].squeeze().mul_(gate.unsqueeze(1))
    return (g,)


WRITTEN = [diagonals, filled_diagonal, through_chains, of_what_is_made_anew, of_what_is_squeezed]


@pytest.mark.parametrize("fn", WRITTEN)
def test_what_a_part_makes_of_the_whole(fn: Any) -> None:
    torch.manual_seed(0)
    assert compare(Example(cell_of(fn), h(), x(WIDTH), [SCALE])).strategy == "sequential"


@pytest.mark.parametrize(
    ("fn", "line"), [(turned_after_a_view, "first.mul_(2)"), (of_detached_zeros, "zeros.detach().add_(1.0)")]
)
def test_what_is_left_to_the_loop_names_the_line_that_writes(fn: Any, line: str) -> None:
    torch.manual_seed(0)
    assert line in compare(Example(cell_of(fn), h(), x(WIDTH), [])).reason
