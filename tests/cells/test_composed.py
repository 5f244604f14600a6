"""Ops that have to be spelled, beside values of several axes, and where the batch is as large as a row is long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bppsa
from bppsa.runtime.recurrent.reference import loop
from tests.cells.support import B, Cell, H, T, Table, fuses, h, random, squashed, x
from tests.scan.support import check
from tests.scan.zoo import example

W, HEADS = random(H, H), random(2, 3, 3)

AXES: Table = [
    ("top k of sums over heads", squashed(lambda h, x: h * h.view(B, 2, 3).sum(1).topk(2).values[:, 1:] + x)),
    ("best head", squashed(lambda h, x: h + x * h.view(B, 2, 3).amax(2).argmax(1, keepdim=True))),
    ("running sums of scores", lambda h, x: (torch.tanh(scores(h).cumsum(1).repeat(1, 3) + x),) * 2),
    ("softmax of a product", squashed(lambda h, x: torch.softmax(h @ W, 1) + x)),
    (
        "deviation of heads",
        squashed(lambda h, x: (h.view(B, 2, 3) / (1 + h.view(B, 2, 3).std(2, keepdim=True))).view(B, H)),
    ),
    ("deviation of all", squashed(lambda h, x: h / (1 + h.view(B, 2, 3).std((1, 2)).unsqueeze(1)) + x)),
    ("largest of all heads", squashed(lambda h, x: h - h.view(B, 2, 3).amax((1, 2)).unsqueeze(1) + x)),
    ("attention of heads", lambda h, x: (torch.tanh(attended(h) + x), h)),
    ("log_softmax of joined parts", squashed(lambda h, x: torch.cat([h[:, :2], x[:, :4]], 1).log_softmax(1) @ W)),
]


def scores(h: Tensor) -> Tensor:  # [B, 2]
    heads = h.view(B, 2, 3)
    return torch.einsum("bhi,hij,bhj->bh", heads, HEADS, heads)


def attended(h: Tensor) -> Tensor:
    heads = h.view(B, 2, 3)
    weights = torch.einsum("bhi,bgi->bhg", heads, heads).softmax(-1)
    return torch.einsum("bhg,bgi->bhi", weights, heads).reshape(B, H)


@pytest.mark.parametrize("cell", [cell for _, cell in AXES], ids=[name for name, _ in AXES])
def test_with_several_axes(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H), W, HEADS)


FILLED: Table = [
    ("a matrix of ones", squashed(lambda h, x: h @ torch.ones(H, H, dtype=h.dtype) / H + x)),
    ("a column of ones", squashed(lambda h, x: h * torch.sigmoid(h @ h.new_ones(H, 1)) + x)),
    ("of each head", squashed(lambda h, x: (h.view(B, 2, 3) @ torch.full((3, 3), 0.1).to(h)).flatten(1) + x)),
]


@pytest.mark.parametrize("cell", [cell for _, cell in FILLED], ids=[name for name, _ in FILLED])
def test_weights_that_are_filled(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H))


# What has no kernel even so is done after the loop: the next carry does not wait for it.
OUTPUTS: Table = [
    ("a sum that runs over what was turned", lambda h, x: (torch.tanh(h + x), h.t().cumsum(0).t())),
    ("several results of heads", lambda h, x: (torch.tanh(h + x), h.view(B, 2, 3).topk(2, 2))),
    ("of what was turned", lambda h, x: (torch.tanh(h + x), h.t().sort(0).values.t() * x)),
    ("the batch merged with heads", lambda h, x: (torch.tanh(h + x), h.view(2 * B, 3).median(1).values.view(B, 2))),
]


@pytest.mark.parametrize("cell", [cell for _, cell in OUTPUTS], ids=[name for name, _ in OUTPUTS])
def test_for_outputs_alone(cell: Cell) -> None:
    torch.manual_seed(0)
    fuses(cell, h(), x(H))


# With B = H nothing but where a value comes from says which of its dimensions is the batch.
SQUARE: Table = [
    ("stacked in front", squashed(lambda h, x: h + torch.stack([x, x.sin()]).permute(1, 0, 2).sum(1))),
    ("stacked in front, taken", squashed(lambda h, x: h + torch.stack([x, x.sin()])[1])),
    ("the best of the batch", squashed(lambda h, x: h + x.max(0).values)),
    ("the best of the batch, as a column", squashed(lambda h, x: h + x.max(0).values.unsqueeze(1))),
    ("the best of a row, as a row", squashed(lambda h, x: h + x.max(1).values)),
    ("topk along the batch", squashed(lambda h, x: h * x.topk(2, 0).values[1])),
    ("turned", squashed(lambda h, x: h * x.t())),
    ("running sums, turned", squashed(lambda h, x: h * x.cumsum(0).t())),
    ("one of the batch", squashed(lambda h, x: h * x[2].unsqueeze(1))),
    ("the best column of the carry", squashed(lambda h, x: h * (1 + h.argmax(1, keepdim=True)) + x)),
    ("elements of the carry", squashed(lambda h, x: h * h.gather(1, x.argsort(1)) + x)),
    ("the largest of a row, as a row", squashed(lambda h, x: h + h.amax(1) * x)),
    ("the carry turned", squashed(lambda h, x: h.t() * x)),
    ("topk of the carry, along the batch", squashed(lambda h, x: h * h.topk(2, 0).values[1] + x)),
    ("sorted by columns", squashed(lambda h, x: h.t().sort(1).values.t() + x)),
    ("running sums by columns", squashed(lambda h, x: h.cumsum(0) + x)),
]


@pytest.mark.parametrize("cell", [cell for _, cell in SQUARE], ids=[name for name, _ in SQUARE])
def test_gives_the_loops_numbers_where_the_batch_is_as_large_as_a_row(cell: Cell) -> None:
    torch.manual_seed(0)
    check(example(cell, random(4, 4), random(T, 4, 4)), tolerance=1e-9)


def test_a_layer_called_for_one_step_of_one_sample() -> None:
    torch.manual_seed(0)
    gru = nn.GRU(3, 3, batch_first=True).double()

    def cell(h: Tensor, x: Tensor) -> Any:
        y, h = gru(x.unsqueeze(1), h.unsqueeze(0))
        return h[0], y[:, 0]

    fuses(cell, random(1, 3), random(T, 1, 3), *gru.parameters())


def test_counters_of_several_axes() -> None:
    def cell(state: Any, x: Tensor) -> Any:
        h, seen = state
        seen = seen + (x.view(B, 2, 3) > 0)
        h = torch.tanh(h + x / (1 + seen.view(B, H)) + seen.permute(0, 2, 1).amax(2).repeat(1, 2))
        return (h, seen), seen.sum((1, 2))

    fuses(cell, (h(), torch.zeros(B, 2, 3, dtype=torch.int64)), x(H))


def test_a_sum_over_several_axes_is_bounded_by_all_its_terms() -> None:
    """4097 * 4096 + 1 is no number of float32: such a call runs by the loop."""

    def cell(state: Any, x: Tensor) -> Any:
        h, n = state
        total = n.view(2, 1, 1).expand(2, 8, 512).sum((1, 2)) + 1
        return (torch.tanh(h + x + (total % 2).unsqueeze(1)), n), h

    given = torch.zeros(2, 3), torch.full((2, 1), 4097)
    (h, _), _ = bppsa.scan(cell, given, torch.zeros(T, 2, 3))
    assert torch.equal(h, loop(cell, given, torch.zeros(T, 2, 3), reverse=False)[0][0])
