"""Carries whose batch is the second dimension, as nn.LSTM has it: fused, and given to the cell as its user has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bppsa
from bppsa import strategies
from bppsa.errors import CarryError
from bppsa.runtime.recurrent.reference import loop
from tests.cells.support import B, H, I, T, fuses, random, x
from tests.scan.support import check, results, same
from tests.scan.zoo import Example, example

LAYERS = 2


def layer(kind: type[nn.RNNBase]) -> Example:
    """Called for one step, with a state that begins anew where an episode ends."""
    torch.manual_seed(0)
    module = kind(I, H, num_layers=LAYERS).double()

    def cell(state: Any, given: Any) -> Any:
        now, done = given
        kept = (1.0 - done).view(1, -1, 1)
        y, state = module(now.unsqueeze(0), tuple(kept * s for s in state) if kind is nn.LSTM else kept * state)
        return state, y.squeeze(0)

    first = (random(LAYERS, B, H), random(LAYERS, B, H)) if kind is nn.LSTM else random(LAYERS, B, H)
    return example(cell, first, (x(), (torch.rand(T, B) < 0.3).float()), modules=(module,))


def decoder() -> Example:
    """With attention over what an encoder has left."""
    torch.manual_seed(0)
    memory, query = random(B, 4, H), nn.Linear(H, H).double()
    gru = nn.GRU(I + H, H, batch_first=True).double()

    def cell(h: Tensor, now: Tensor) -> Any:
        weights = torch.softmax(torch.bmm(query(h.permute(1, 0, 2)), memory.transpose(1, 2)), -1)
        context = torch.bmm(weights, memory)
        y, h = gru(torch.cat([now.unsqueeze(1), context], 2), h)
        return h, (y.squeeze(1), weights)

    return example(cell, random(1, B, H), x(), memory, modules=(query, gru))


def stacked(rows: int = B) -> Example:
    """The states of xLSTM's own sLSTM: four in one tensor."""
    torch.manual_seed(0)
    mix = random(H, 4 * H)

    def cell(states: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        h, c, n, m = torch.unbind(states.view(4, states.shape[1], -1), dim=0)
        raw = gates + h @ mix
        i, f, z, o = torch.unbind(raw.view(raw.shape[0], 4, -1), dim=1)
        kept = m + functional.logsigmoid(f)
        m = torch.max(i, kept)
        i, f = torch.exp(i - m), torch.exp(kept - m)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / n
        return torch.stack((h, c, n, m), dim=0), h

    first = torch.rand(4, rows, H, dtype=torch.float64).add(0.5).requires_grad_()
    return example(cell, first, random(T, rows, 4 * H), mix)


def mixed() -> Example:
    """One leaf this way, one that way, a counter [1, B], and features in front of the batch."""
    torch.manual_seed(0)
    mix = random(H, H)

    def cell(state: Any, now: Tensor) -> Any:
        h, columns, count = state
        h = torch.tanh(h + now @ mix + columns.T / (1 + count.T))
        return (h, 0.5 * columns + h.T, count + (now[:, :1] > 0).T), (columns, h)

    return example(cell, (random(B, H), random(H, B), torch.zeros(1, B, dtype=torch.int64)), x(H), mix)


EXAMPLES: dict[str, Callable[[], Example]] = {
    "nn.LSTM": lambda: layer(nn.LSTM),
    "nn.GRU": lambda: layer(nn.GRU),
    "a decoder": decoder,
    "states in one": stacked,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_is_fused_and_equals_its_loop(name: str) -> None:
    given = EXAMPLES[name]()
    fuses(*given[:3], *given.parameters)
    assert check(given, reverse=True, tolerance=1e-9).strategy == "sequential"


@pytest.mark.parametrize("rows", [1, 2, 4, H])
def test_sizes_that_say_nothing(rows: int) -> None:
    """With as many rows as states, the first dimension is taken for the batch, and the loop runs."""
    check(stacked(rows), tolerance=1e-9)


def test_by_a_scan_over_jacobians() -> None:
    given = layer(nn.GRU)
    chunked = functools.partial(bppsa.scan, strategy=strategies.chunked(2))
    for got, expected in zip(results(chunked, given), results(loop, given), strict=True):
        same(got, expected, 1e-9)


def test_one_cell_with_its_batch_first_and_second() -> None:
    """Shapes are part of what a plan is known by."""
    mix = random(H, H)

    def cell(h: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ mix + now)
        return h, h

    for shape in ((1, B, H), (B, B, H), (1, B, H)):
        given = example(cell, random(*shape), random(T, B, H), mix)
        check(given, tolerance=1e-9)


def test_an_error_has_the_shapes_of_the_user() -> None:
    with pytest.raises(CarryError, match=r"carry was \[1, 3, 6\] .* and is \[3, 6\]"):
        bppsa.scan(lambda h, now: (h[0], h), random(1, B, H), x())


def test_no_dimension_is_the_batch() -> None:
    decision = check(example(lambda h, now: (h * 0.9 + now.sum(), h), random(2, 7), x()))
    assert "batch sizes [2, 3]" in decision.reason
