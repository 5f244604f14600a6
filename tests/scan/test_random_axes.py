"""Random chains of ops on values of several axes, as cells: fused, and equal a plain loop."""

from __future__ import annotations

import random as draws
from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.scan.support import check
from tests.scan.zoo import Example, random

MOST = 40  # numbers in a row of what still grows
Draw = draws.Random
Link = Callable[[Draw, Tensor], Tensor]


def dim(draw: Draw, v: Tensor) -> int:
    return draw.randrange(1, v.dim())


def permuted(draw: Draw, v: Tensor) -> Tensor:
    order = list(range(1, v.dim()))
    draw.shuffle(order)
    return v.permute(0, *order)


def viewed(draw: Draw, v: Tensor) -> Tensor:
    if v.dim() > 2:
        return v.flatten(1) if draw.random() < 0.5 else v.flatten(-2)
    return v.view(len(v), 2, -1) if v.shape[1] % 2 == 0 else v


def cut(draw: Draw, v: Tensor) -> Tensor:
    at = dim(draw, v)
    if v.shape[at] == 1:
        return v
    return v.narrow(at, 1, v.shape[at] - 1) if draw.random() < 0.6 else v[(slice(None),) * at + (slice(None, None, 2),)]


def repeated(draw: Draw, v: Tensor) -> Tensor:
    sizes = [2 if n == 1 else -1 for n in v.shape[1:]]
    return v.expand(-1, *sizes)


def outer(draw: Draw, v: Tensor) -> Tensor:
    return v.flatten(1).unsqueeze(1) * v.flatten(1).sigmoid().unsqueeze(2) if prod(v.shape[1:]) < 8 else v


def of_wide(link: Link) -> Link:
    return lambda draw, v: link(draw, v) if v.dim() > 2 else v


def growing(link: Link) -> Link:
    return lambda draw, v: link(draw, v) if prod(v.shape[1:]) < MOST and v.dim() < 4 else v


LINKS: tuple[Link, ...] = (
    permuted,
    viewed,
    cut,
    repeated,
    outer,
    lambda draw, v: v.unsqueeze(draw.randrange(1, v.dim() + 1)) if v.dim() < 4 else v,
    lambda draw, v: v.flip(dim(draw, v)),
    lambda draw, v: v.roll(1, dim(draw, v)),
    lambda draw, v: torch.tanh(v),
    lambda draw, v: torch.softmax(v, dim(draw, v)),
    lambda draw, v: functional.layer_norm(v, v.shape[-1:]),
    lambda draw, v: v * v.mean(dim(draw, v), keepdim=True),
    of_wide(lambda draw, v: v.select(dim(draw, v), draw.choice((0, -1)))),
    of_wide(lambda draw, v: v.sum(dim(draw, v), keepdim=draw.random() < 0.5)),
    of_wide(lambda draw, v: v.amax(dim(draw, v), keepdim=draw.random() < 0.5)),
    of_wide(lambda draw, v: torch.logsumexp(v, dim(draw, v))),
    of_wide(lambda draw, v: (v.transpose(0, 1) * 1.5).sigmoid().transpose(0, 1)),
    of_wide(lambda draw, v: v @ v.transpose(-1, -2) if v.shape[-2] < 8 else v),
    growing(lambda draw, v: torch.cat([v, v.sigmoid()], dim(draw, v))),
    growing(lambda draw, v: torch.stack([v, v * 2], draw.randrange(1, v.dim() + 1))),
    growing(lambda draw, v: functional.pad(v, (1, 0))),
)


def chained(seed: int, rows: int, heads: int, width: int) -> Example:
    w = random(heads, width)

    def cell(s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        draw = draws.Random(seed)
        v = s * w + x
        for _ in range(draw.randrange(2, 8)):
            v = draw.choice(LINKS)(draw, v)
        u = v if v.shape == s.shape else v.flatten(1).mean(1).view(-1, 1, 1)
        return torch.tanh(0.5 * s + u + x), v

    return Example(cell, random(rows, heads, width), random(3, rows, heads, width), [w])


@pytest.mark.parametrize("seed", range(40))
def test_chains_are_fused_and_equal_a_loop(seed: int) -> None:
    torch.manual_seed(seed)
    sizes = (2, 3, 1)[seed % 3], *((2, 4), (3, 2), (4, 3))[seed // 3 % 3]
    decision = check(chained(seed, *sizes), tolerance=1e-9)
    assert decision.strategy == "sequential", decision.reason
