"""Ops that pick elements by a rule of their own: padding, pixel shuffles, rolls, flips, repeats and constant indices.

Each element of the output is one of the input, or a constant: the op itself, run on element numbers, says which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, ops

from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules.registry import rule
from bppsa.sparsity.rules.shape import Moved, numbers

aten = ops.aten


def picked(x: Tensor, out: Tensor, take: Callable[[Tensor], Tensor], vjp: Callable[[Tensor], Tensor]) -> Implicit:
    """`take` is the op itself, with 0 where it puts in a constant; it sees element numbers as float64."""

    def links() -> Pattern:
        n, m = x.shape[1:].numel(), out.shape[1:].numel()
        rows = take(numbers(x.shape[1:]).double() + 1).flatten().long() - 1  # -1: a constant
        columns = torch.arange(m)
        return Pattern.from_entries(rows[rows >= 0], columns[rows >= 0], (n, m))

    return Implicit(x, out, vjp, links, shared=True)


def like(g: Tensor, x: Tensor) -> Tensor:
    """A tensor of x's shape but with g's rows: backward ops read no more of it."""
    return g.new_empty(g.shape[0], *x.shape[1:])


@rule(aten.constant_pad_nd.default)
def constant_pad(x: Tensor, pad: Sequence[int], value: float = 0, *, out: Tensor) -> tuple[Moved]:
    def vjp(g: Tensor) -> Tensor:
        return aten.constant_pad_nd(g, [-p for p in pad])

    if len(pad) == 2 * x.dim() and any(pad[-2:]):
        return (AcrossRows(vjp),)
    return (picked(x, out, lambda n: aten.constant_pad_nd(n, pad), vjp),)


def edge_pad(op: Any, backward: Any, x: Tensor, pad: Sequence[int], *, out: Tensor) -> tuple[Moved]:
    """x: [B, C, *grid]"""
    return (picked(x, out, lambda n: op(n, pad), lambda g: backward(g, like(g, x), pad)),)


for _kind in ("reflection_pad", "replication_pad"):
    for _d in (1, 2, 3):
        _forward, _backward = (getattr(aten, f"{_kind}{_d}d{suffix}").default for suffix in ("", "_backward"))
        rule(_forward)(functools.partial(edge_pad, _forward, _backward))


@rule(aten.pixel_shuffle.default)
def pixel_shuffle(x: Tensor, factor: int, *, out: Tensor) -> tuple[Moved]:
    return (picked(x, out, lambda n: aten.pixel_shuffle(n, factor), lambda g: aten.pixel_unshuffle(g, factor)),)


@rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(x: Tensor, factor: int, *, out: Tensor) -> tuple[Moved]:
    return (picked(x, out, lambda n: aten.pixel_unshuffle(n, factor), lambda g: aten.pixel_shuffle(g, factor)),)


def shuffled(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


@rule(aten.channel_shuffle.default)
def channel_shuffle(x: Tensor, groups: int, *, out: Tensor) -> tuple[Moved]:
    return (picked(x, out, lambda n: shuffled(n, groups), lambda g: shuffled(g, x.shape[1] // groups)),)


@rule(aten.roll.default)
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = (), *, out: Tensor) -> tuple[Moved]:
    back = [-shift for shift in shifts]

    def vjp(g: Tensor) -> Tensor:
        return aten.roll(g, back, dims)

    if not dims or 0 in (d % x.dim() for d in dims):
        return (AcrossRows(vjp),)
    return (picked(x, out, lambda n: aten.roll(n, shifts, dims), vjp),)


@rule(aten.flip.default)
def flip(x: Tensor, dims: Sequence[int], *, out: Tensor) -> tuple[Moved]:
    def turn(g: Tensor) -> Tensor:
        return aten.flip(g, dims)

    return (AcrossRows(turn) if 0 in (d % x.dim() for d in dims) else picked(x, out, turn, turn),)


@rule(aten.repeat.default)
def repeat(x: Tensor, times: Sequence[int], *, out: Tensor) -> tuple[Moved]:
    """x goes to every tile of the output."""
    shape = [1] * (len(times) - x.dim()) + list(x.shape)

    def vjp(g: Tensor) -> Tensor:
        rows = [g.shape[0] // times[0], *shape[1:]]
        tiles = g.reshape([n for pair in zip(times, rows, strict=True) for n in pair])
        return tiles.sum(list(range(0, 2 * len(times), 2))).reshape(-1, *x.shape[1:])

    if len(times) != x.dim() or times[0] != 1:
        return (AcrossRows(lambda g: vjp(g).reshape(x.shape)),)
    return (picked(x, out, lambda n: n.repeat(1, *times[1:]), vjp),)


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(x: Tensor, indices: Sequence[Tensor | None], *, out: Tensor) -> tuple[Moved | None, ...]:
    """Constant indices, of the same elements for every row."""

    def take(n: Tensor) -> Tensor:
        return aten.index(n, [i if i is None else i.cpu() for i in indices])

    def vjp(g: Tensor) -> Tensor:
        return aten.index_put(g.new_zeros(g.shape[0], *x.shape[1:]), indices, g, True)

    def across(g: Tensor) -> Tensor:
        return aten.index_put(g.new_zeros(x.shape), indices, g, True)

    moved = AcrossRows(across) if indices[0] is not None else picked(x, out, take, vjp)
    return (moved, *(None for i in indices if i is not None))


def triangle(op: Any, x: Tensor, diagonal: int = 0, *, out: Tensor) -> tuple[Moved]:
    def cut(g: Tensor) -> Tensor:
        return op(g, diagonal)

    return (picked(x, out, cut, cut) if x.dim() > 2 else AcrossRows(cut),)


for _cut in (aten.tril.default, aten.triu.default):
    rule(_cut)(functools.partial(triangle, _cut))
