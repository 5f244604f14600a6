"""Ops that move or repeat elements.

J^T is an identity, or consists of zeros and ones; then its pattern is found by running the op on element numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.operators.simple import Identity
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules.matrix_ops import CHECKED
from bppsa.sparsity.rules.registry import rule

aten = torch.ops.aten
Moved = Identity | Implicit | AcrossRows


def numbers(row: Sequence[int]) -> Tensor:
    """The elements of a row numbered, as a batch of one: int64 [1, *row]."""
    return torch.arange(torch.Size(row).numel()).view(1, *row)


def ones(x: Tensor, count: int) -> Callable[[], Tensor]:
    """The entries of a J^T that copies: `count` of them, shared by the batch."""
    return lambda: x.new_ones(count)


def gathered(x: Tensor, out: Tensor, take: Callable[[Tensor], Tensor], vjp: Callable[[Tensor], Tensor]) -> Implicit:
    """Each element of out is one of x: `take` is the op itself, for any batch."""

    def links() -> Pattern:
        return Pattern.one_per_column(take(numbers(x.shape[1:])).flatten(), x.shape[1:].numel())

    return Implicit(x, out, vjp, links, shared=True, values=ones(x, out.shape[1:].numel()))


def scattered(x: Tensor, out: Tensor, vjp: Callable[[Tensor], Tensor]) -> Implicit:
    """Each element of x goes to one of out, so the VJP itself takes the number of each element's column."""

    def links() -> Pattern:
        return Pattern.one_per_row(vjp(numbers(out.shape[1:])).flatten(), out.shape[1:].numel())

    return Implicit(x, out, vjp, links, shared=True, values=ones(x, x.shape[1:].numel()))


# Copies and reshapes -------------------------------------------------------------------------------------------------


@rule(
    *(op.default for op in (aten.view, aten._unsafe_view, aten.reshape, aten.unsqueeze, aten.squeeze)),
    *(op.default for op in (aten.clone, aten.alias, aten._to_copy)),
    *(aten.squeeze.dim, aten.squeeze.dims, CHECKED),
)
def reshape(x: Tensor, *args: object, out: Tensor, **kwargs: object) -> tuple[Moved | None]:
    if not (x.is_floating_point() and out.is_floating_point()):
        return (None,)
    keeps_rows = x.dim() and out.dim() and x.shape[0] == out.shape[0]
    return (Identity(x, out) if keeps_rows else AcrossRows(lambda g: g.reshape(x.shape)),)


@rule(aten.permute.default)
def permute(x: Tensor, dims: Sequence[int], *, out: Tensor) -> tuple[Moved]:
    dims = [d % x.dim() for d in dims]
    inverse = [dims.index(d) for d in range(x.dim())]
    if dims[0] != 0:
        return (AcrossRows(lambda g: g.permute(inverse)),)
    return (gathered(x, out, lambda n: n.permute(dims), lambda g: g.permute(inverse)),)


@rule(aten.transpose.int)
def transpose(x: Tensor, a: int, b: int, *, out: Tensor) -> tuple[Moved]:
    def swap(g: Tensor) -> Tensor:
        return g.transpose(a, b)

    keeps_rows = 0 not in (a % x.dim(), b % x.dim())
    return (gathered(x, out, swap, swap) if keeps_rows else AcrossRows(swap),)


@rule(aten.expand.default)
def expand(x: Tensor, size: Sequence[int], *, implicit: bool = False, out: Tensor) -> tuple[Moved]:
    if x.dim() != out.dim() or x.shape[0] != out.shape[0]:
        return (AcrossRows(lambda g: g.sum_to_size(x.shape)),)
    dims = [d for d in range(x.dim()) if x.shape[d] != out.shape[d]]
    if not dims:
        return (Identity(x, out),)
    return (gathered(x, out, lambda n: n.expand(-1, *out.shape[1:]), lambda g: g.sum(dims, keepdim=True)),)


# Pieces of a dimension -----------------------------------------------------------------------------------------------


def embed(g: Tensor, dim: int, start: int, step: int, length: int) -> Tensor:
    """g at places start, start + step, ... of `dim`, which becomes `length` long; zeros elsewhere."""
    size = list(g.shape)

    def zeros(n: int) -> Tensor:
        return g.new_zeros([*size[:dim], n, *size[dim + 1 :]])

    if step != 1:
        return torch.slice_scatter(zeros(length), g, dim, start, start + size[dim] * step, step)
    parts, after = [g], length - start - size[dim]
    if start:
        parts.insert(0, zeros(start))
    if after:
        parts.append(zeros(after))
    return torch.cat(parts, dim)


def piece(x: Tensor, out: Tensor, dim: int, start: int, step: int = 1, squeezed: bool = False) -> Moved:
    """out is x at places start, start + step, ... of `dim` (dim >= 0), or without `dim` where it is squeezed."""
    length, count = x.shape[dim], 1 if squeezed else out.shape[dim]

    def vjp(g: Tensor) -> Tensor:
        return embed(g.unsqueeze(dim) if squeezed else g, dim, start, step, length)

    if dim == 0:
        return AcrossRows(vjp)
    return gathered(x, out, lambda n: aten.slice.Tensor(n, dim, start, start + count * step, step), vjp)


@rule(aten.slice.Tensor)
def slice_tensor(
    x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1, *, out: Tensor
) -> tuple[Moved]:
    if x.shape == out.shape:
        return (Identity(x, out),)
    dim %= x.dim()
    return (piece(x, out, dim, slice(start, end, step).indices(x.shape[dim])[0], step),)


@rule(aten.select.int)
def select_int(x: Tensor, dim: int, index: int, *, out: Tensor) -> tuple[Moved]:
    dim %= x.dim()
    return (piece(x, out, dim, index % x.shape[dim], squeezed=True),)


@rule(aten.split.Tensor, aten.split_with_sizes.default)
def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0, *, out: Sequence[Tensor]) -> tuple[tuple[Moved], ...]:
    dim %= x.dim()
    starts = itertools.accumulate((part.shape[dim] for part in out), initial=0)
    return tuple((piece(x, part, dim, start),) for part, start in zip(out, starts, strict=False))


@rule(aten.unbind.int)
def unbind(x: Tensor, dim: int = 0, *, out: Sequence[Tensor]) -> tuple[tuple[Moved], ...]:
    dim %= x.dim()
    return tuple((piece(x, part, dim, i, squeezed=True),) for i, part in enumerate(out))


@rule(aten.cat.default)
def cat(parts: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> tuple[Moved, ...]:
    dim %= out.dim()
    starts = itertools.accumulate((part.shape[dim] for part in parts), initial=0)
    return tuple(joined(part, out, dim, start) for part, start in zip(parts, starts, strict=False))


def joined(part: Tensor, out: Tensor, dim: int, start: int) -> Moved:
    def vjp(g: Tensor) -> Tensor:
        return g.narrow(dim, start, part.shape[dim])

    return scattered(part, out, vjp) if dim else AcrossRows(vjp)


@rule(aten.stack.default)
def stack(parts: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> tuple[Moved, ...]:
    dim %= out.dim()
    return tuple(stacked(part, out, dim, i) for i, part in enumerate(parts))


def stacked(part: Tensor, out: Tensor, dim: int, index: int) -> Moved:
    def vjp(g: Tensor) -> Tensor:
        return g.select(dim, index)

    return scattered(part, out, vjp) if dim else AcrossRows(vjp)
