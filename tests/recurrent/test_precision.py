"""In float32 and bfloat16 no output and no gradient is further from the exact one than PyTorch's.

Exact is PyTorch's float64 run on the same rounded numbers. The error of a tensor is its difference to the exact one, in
the 2-norm and in the largest element, in units of the dtype's eps times the same norm of the exact tensor; of some
models drawn at random the root mean square is taken. In both measures ours may be twice PyTorch's, or 4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.breadth import alternate, diagonal
from tests.machine import skip_without_lstm_of_bfloat16
from tests.recurrent.support import KINDS, MANY, B, H, I, compiled, leaves, random, results, states, sweeps

DTYPES = (torch.float32, torch.bfloat16)
Call = Callable[..., Any]  # (module, *arguments) -> its results


def double(value: Any) -> Any:
    """A copy in float64, each tensor a leaf that wants a gradient."""
    if isinstance(value, tuple):
        return tuple(map(double, value))
    return value.detach().double().requires_grad_() if isinstance(value, Tensor) else copy.deepcopy(value).double()


def errors(model: nn.RNNBase, arguments: tuple[Any, ...], call: Call) -> Tensor:
    """[ours or PyTorch's, tensor, measure]"""
    dtype = model.weight_hh_l0.dtype
    exact_model, exact_arguments = double(model), double(arguments)

    def run(module: Any, given: tuple[Any, ...], leaf: nn.RNNBase) -> list[Tensor | None]:
        return results(partial(call, module), given, [*leaves(given), *leaf.parameters()], dtype=dtype)

    with torch.autocast("cpu", enabled=False):
        exact = run(exact_model, exact_arguments, exact_model)
    theirs = run(model, arguments, model)
    with sweeps() as ran:
        ours = run(compiled(model), arguments, model)
    assert {*ran} == {"forward", "backward"}
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    return torch.tensor([[distances(*pair) for pair in zip(got, exact, strict=True)] for got in (ours, theirs)])


def distances(got: Tensor, exact: Tensor) -> list[float]:
    found = []
    for order in (2, math.inf):
        norms = [torch.linalg.vector_norm(t.detach().double(), order).item() for t in (got - exact, exact)]
        found.append(norms[0] and norms[0] / (norms[1] * torch.finfo(got.dtype).eps))
    return found


def nn_call(module: nn.Module, *arguments: Any) -> Any:
    return module(*arguments)


def check(draw: Callable[[], tuple[nn.RNNBase, tuple[Any, ...]]], call: Call = nn_call, seeds: int = 3) -> None:
    """draw: a model and its arguments, other numbers each time."""
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        found.append(errors(*draw(), call))
    ours, theirs = torch.stack(found).square().mean(0).sqrt()
    table = f"ours and PyTorch's errors, in both measures:\n{torch.cat([ours, theirs], -1)}"
    assert bool((ours <= (2 * theirs).clamp(min=4)).all()), table


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 20])
def test_given_states(kind: str, dtype: torch.dtype, steps: int) -> None:
    def draw() -> Any:
        model = KINDS[kind](I, H, dtype=dtype)
        return model, (random(steps, B, I, dtype=dtype), states(model, B))

    check(draw)


@pytest.mark.parametrize("kind", alternate(KINDS, len(KINDS)))
def test_long_sequences(kind: str) -> None:
    """Where sums over all steps lose digits."""
    check(lambda: (KINDS[kind](I, H), (random(1000, B, I, dtype=torch.float32),)), seeds=1)


@pytest.mark.parametrize(("kind", "dtype"), diagonal(KINDS, DTYPES), ids=str)
def test_layers_directions_and_lengths(kind: str, dtype: torch.dtype) -> None:
    def draw() -> Any:
        return KINDS[kind](I, H, 3, bidirectional=True, dtype=dtype), (random(30, MANY, I, dtype=dtype),)

    def packed(module: nn.Module, x: Tensor) -> Any:
        return module(pack_padded_sequence(x, torch.tensor([13, 30, 1, 13, 2, 8, 29, 7, 7]), enforce_sorted=False))

    check(draw)
    check(draw, packed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["rnn-tanh", "gru", "lstm"])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 30.0, 3000.0])
def test_tiny_values_and_saturated_gates(kind: str, dtype: torch.dtype, scale: float) -> None:
    def draw() -> Any:
        model = KINDS[kind](I, H, dtype=dtype)
        return model, ((scale * random(20, B, I)).to(dtype).detach().requires_grad_(),)

    check(draw)


@pytest.mark.parametrize("weights", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind: str, weights: torch.dtype) -> None:
    """Forward and backward under bfloat16 autocast: PyTorch's dtypes, and no further from the exact result."""
    if kind == "lstm" and weights is torch.float32:
        skip_without_lstm_of_bfloat16()

    def draw() -> Any:
        return KINDS[kind](I, H, 2, dtype=weights), (random(20, B, I, dtype=weights),)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(draw)
