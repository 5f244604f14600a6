"""Cells that treat their heads alike, run with heads as rows; others are left as they are."""

from __future__ import annotations

import random as draws
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bppsa.frontend.cell import plans
from bppsa.fxpasses.cell import heads
from tests.scan import matrices
from tests.scan.folds import mlstm
from tests.scan.matrices import Make, Sizes, keys, matrix
from tests.scan.support import check, check_inference
from tests.scan.test_random_axes import LINKS
from tests.scan.zoo import Example, example, random

SIZES = Sizes(2, 3, 4, 5)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "LARGE", 1)


def rows_of(given: Example) -> int:
    """So many rows a row of the batch is in kernels."""
    (carry, carry_spec), (xs, x_spec) = map(pytree.tree_flatten, (given.carry, given.xs))
    found = plans.find(given.cell, carry, carry_spec, xs, x_spec)
    assert isinstance(found, tuple), found
    return found[0].recurrence.heads


APART: list[Make] = [
    *(matrices.retnet, matrices.gated_linear_attention, matrices.delta, matrices.gated_delta_by_einsum),
    *(matrices.rwkv7, matrices.linear_attention, matrices.gated_linear_attention_projected, mlstm),
]


@pytest.mark.parametrize("make", APART)
@pytest.mark.parametrize("sizes", [SIZES, Sizes(1, 2, 3, 2), Sizes(3, 4, 4, 4)], ids=str)
def test_heads_are_rows(make: Make, sizes: Sizes) -> None:
    given = make(sizes)
    assert rows_of(given) == sizes.h
    for reverse in (False, True):
        assert check(given, reverse=reverse).strategy == "sequential"
        check_inference(given, reverse=reverse)


MIXING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda S, q: S.mean(1, keepdim=True) + 0 * S,
    "softmax": lambda S, q: torch.softmax(S, 1),
    "flip": lambda S, q: S.flip(1),
    "roll": lambda S, q: S.roll(1, 1),
    "norm of all": lambda S, q: S / (1 + S.flatten(1).norm(dim=1)[:, None, None, None]),
    "one to all": lambda S, q: S + S[:, :1],
    "last first": lambda S, q: torch.cat([S[:, -1:], S[:, :-1]], 1),
    "cumsum": lambda S, q: S.cumsum(1) / S.shape[1],
    "between": lambda S, q: (torch.einsum("bhdn,bgdn->bhg", S, S) @ S.flatten(2)).view(S.shape) * 0.01,
    "transposed": lambda S, q: S.transpose(1, 2).reshape(S.shape),
}


@pytest.mark.parametrize("mix", MIXING.values(), ids=MIXING)
def test_what_mixes_heads_is_left_as_it_is(mix: Callable[[Tensor, Tensor], Tensor]) -> None:
    def cell(S: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = 0.5 * mix(S, q) + k.unsqueeze(-1) * v.unsqueeze(-2)
        return S, (q.unsqueeze(-1) * S).sum(-2)

    given = example(cell, matrix(SIZES), keys(SIZES))
    assert rows_of(given) == 1
    check(given)


W, U = random(3), random(3, 4)
BY_HEAD: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "decays": lambda S, q, k, v: torch.sigmoid(W).view(-1, 1, 1) * S + k.unsqueeze(-1) * v.unsqueeze(-2),
    "decays of columns": lambda S, q, k, v: U.sigmoid()[None, :, :, None] * S + k.unsqueeze(-1) * v.unsqueeze(-2),
    "flat decays": lambda S, q, k, v: (
        (S.flatten(1, 2) * U.flatten()[:, None]).view(S.shape) * 0.5 + k.unsqueeze(-1) * v.unsqueeze(-2)
    ),
    "by number": lambda S, q, k, v: (
        S * (torch.arange(1.0, 4.0).double()[:, None, None] / 5) + k.unsqueeze(-1) * v.unsqueeze(-2)
    ),
    "shared by heads": lambda S, q, k, v: S * q[:, :1, :, None].sigmoid() + k.unsqueeze(-1) * v.unsqueeze(-2),
}


@pytest.mark.parametrize("step", BY_HEAD.values(), ids=BY_HEAD)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_what_differs_by_head_or_is_all_heads_is_given_to_each(step: Callable[..., Any], rows: int) -> None:
    def cell(S: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = step(S, q, k, v)
        return S, (q.unsqueeze(-1) * S).sum(-2) * W[:, None]

    sizes = Sizes(rows, 3, 4, 5)
    given = example(cell, matrix(sizes), keys(sizes), W, U)
    assert rows_of(given) == 3
    check(given)
    check(given, reverse=True)
    check_inference(given)


def test_weights_of_each_head_as_large_as_a_state_stay_parameters() -> None:
    w = random(3, 5, 5)

    def cell(S: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = torch.tanh(torch.einsum("bhkv,hvw->bhkw", S, w)) + k.unsqueeze(-1) * v.unsqueeze(-2)
        return S, (q.unsqueeze(-1) * S).sum(-2)

    given = example(cell, matrix(SIZES), keys(SIZES), w)
    assert rows_of(given) == 1
    check(given)


def test_what_is_as_large_as_a_state_is_not_made_before_the_loop() -> None:
    def cell(S: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = 0.5 * S + (k.flip(1).unsqueeze(-1) * v.flip(1).unsqueeze(-2)).flip(1)
        return S, (q.unsqueeze(-1) * S).sum(-2)

    given = example(cell, matrix(SIZES), keys(SIZES))
    assert rows_of(given) == 1
    check(given)


def test_an_output_of_all_heads_is_made_behind_the_loop() -> None:
    w, head = random(15, 2), random(5)

    def cell(S: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        q, k, v = x
        S = 0.5 * S + k.unsqueeze(-1) * (v + head).unsqueeze(-2)
        return S, torch.tanh((q.unsqueeze(-1) * S).sum(-2).flatten(1) @ w)

    given = example(cell, matrix(SIZES), keys(SIZES), w, head)
    assert rows_of(given) == 3
    check(given)
    check(given, reverse=True)


@pytest.mark.parametrize("seed", range(30))
def test_chains_of_ops_on_heads(seed: int) -> None:
    """Whether or not they mix heads."""
    torch.manual_seed(seed)
    draw = draws.Random(seed)
    order = [draw.choice(LINKS) for _ in range(draw.randrange(1, 4))]

    def cell(S: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        own = draws.Random(seed)
        v = S * x.sigmoid()
        for link in order:
            v = link(own, v)
        return torch.tanh(S + x), v

    check(Example(cell, random(2, 3, 2, 4), random(3, 2, 3, 2, 4), []), tolerance=1e-9)
