"""NaN and Inf: where they come in they come out, they stay in their sequence, and nothing else changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from tests.recurrent.support import (
    KINDS,
    MANY,
    B,
    H,
    I,
    T,
    compiled,
    distance,
    leaves,
    random,
    states,
    sweeps,
    weighted,
)

BAD = [math.nan, math.inf, -math.inf]
STEP, ROW = 2, 1


def finite(*tensors: Tensor) -> list[Tensor]:
    """Each with its NaN and Inf set to 0."""
    return [t.detach().nan_to_num(0.0, 0.0, 0.0) for t in tensors]


def assert_same_pattern(got: Tensor, expected: Tensor) -> None:
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isposinf(), expected.isposinf())
    assert torch.equal(got.isneginf(), expected.isneginf())
    assert distance(*finite(got, expected)) <= 1e-10


def both(model: Any, *arguments: Any) -> list[list[Tensor]]:
    with sweeps() as ran:
        found = [leaves(module(*arguments)) for module in (compiled(model), model)]
    assert ran
    return found


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("rows", [B, MANY])
def test_inputs(kind: str, flags: dict[str, Any], rows: int, value: float) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H, **flags).double()
    x = random(T, rows, I, grad=False)
    x[STEP, ROW, 0] = value
    for got, expected in zip(*both(model, x), strict=True):
        assert_same_pattern(got, expected)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_weights(kind: str, value: float) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H).double()
    x, hx = random(T, B, I, grad=False), states(model, B, grad=False)
    leaves(hx)[-1][0, ROW, 3] = value
    for got, expected in zip(*both(model, x, hx), strict=True):
        assert_same_pattern(got, expected)
    with torch.no_grad():
        model.weight_hh_l0[5, 2] = value
    for got, expected in zip(*both(model, x), strict=True):
        assert_same_pattern(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_neighbours_of_other_lengths(kind: str) -> None:
    """Rows that have ended are padding, and padding is not read."""
    torch.manual_seed(0)
    model = KINDS[kind](I, H, bidirectional=True).double()
    x = random(T, B, I, grad=False)
    x[1:, ROW] = math.nan
    packed = pack_padded_sequence(x, torch.tensor([T, 1, T - 2]), enforce_sorted=False)
    for got, expected in zip(*both(model, packed), strict=True):
        assert not expected.isnan().any()
        assert_same_pattern(got, expected)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("rows", [B, MANY])
def test_gradients_show_it_and_other_sequences_do_not(kind: str, rows: int, bidirectional: bool, value: float) -> None:
    """A gradient that is not finite in PyTorch is not finite here; other rows of the batch keep their numbers."""
    torch.manual_seed(0)
    model = KINDS[kind](I, H, bidirectional=bidirectional).double()
    data = random(T, rows, I, grad=False)
    data[STEP, ROW, 0] = value
    x = data.requires_grad_()
    found = []
    for module in (compiled(model), model):
        wanted = [x, *model.parameters()]
        found.append(torch.autograd.grad(weighted(leaves(module(x))), wanted))
    others = [row for row in range(rows) if row != ROW]
    (got, *weights), (expected, *expected_weights) = found
    assert got[:, others].isfinite().all()
    assert distance(got[:, others], expected[:, others]) <= 1e-10
    for a, b in zip((got, *weights), (expected, *expected_weights), strict=True):
        assert bool((b.isfinite() | ~a.isfinite()).all())


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_cotangents(kind: str, value: float) -> None:
    torch.manual_seed(0)
    model = KINDS[kind](I, H).double()
    x, cotangent = random(T, B, I), random(T, B, model.proj_size or H, grad=False)
    cotangent[STEP, ROW, 0] = value
    found = [torch.autograd.grad(module(x)[0], x, cotangent)[0] for module in (compiled(model), model)]
    assert found[0][STEP + 1 :].isfinite().all()
    assert bool((found[1].isfinite() | ~found[0].isfinite()).all())
    rows = [row for row in range(B) if row != ROW]
    assert distance(found[0][:, rows], found[1][:, rows]) <= 1e-10
    assert distance(found[0][STEP + 1 :], found[1][STEP + 1 :]) <= 1e-10
