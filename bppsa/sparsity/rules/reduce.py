"""Reductions over dimensions of a row, and softmax.

J^T stays implicit: block by block it is rank one, or for softmax a diagonal plus rank one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor

from bppsa.errors import Unsupported
from bppsa.sparsity.operators.across import AcrossRows
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.patterns.flat import as_held, flat
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.rules.registry import rule
from bppsa.sparsity.rules.shape import numbers

aten = torch.ops.aten
Reduced = Implicit | AcrossRows
Dims = Sequence[int] | None


def normal(dims: Dims, x: Tensor) -> list[int]:
    """Ascending and non-negative; none given means all."""
    return sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))


def spread(g: Tensor, dims: Sequence[int], keepdim: bool, shape: Size) -> Tensor:
    """The adjoint of a sum over `dims` (ascending): g repeated to `shape`."""
    for d in dims if not keepdim else ():
        g = g.unsqueeze(d)
    return g.expand(-1, *shape[1:]) if 0 not in dims else g.expand(shape)


def reduction(
    x: Tensor,
    out: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    d: Callable[[Tensor], Tensor],
    shared: bool = False,
) -> Reduced:
    """out sums f(x) over `dims`; d turns the cotangent, already spread to x's shape, into that of x.

    shared: whether d is the same for all rows.
    """

    def vjp(g: Tensor) -> Tensor:
        return d(spread(g, dims, keepdim, x.shape))

    def links() -> Pattern:
        columns = spread(numbers(out.shape[1:]), dims, keepdim, Size((1, *x.shape[1:])))
        return Pattern.one_per_row(columns.flatten(), out.shape[1:].numel())

    def values() -> Tensor:
        """One entry a row: what each element gets of a cotangent of ones."""
        return as_held(flat(d(x.new_ones(1 if shared else len(x), *x.shape[1:]))))

    return AcrossRows(vjp) if 0 in dims else Implicit(x, out, vjp, links, shared=shared, values=values)


def size_of(x: Tensor, dims: Sequence[int]) -> int:
    return Size(x.shape[d] for d in dims).numel()


@rule(aten.sum.default, aten.sum.dim_IntList)
def sum_(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None, out: Tensor) -> tuple[Reduced]:
    return (reduction(x, out, normal(dim, x), keepdim, lambda g: g, shared=True),)


@rule(aten.mean.default, aten.mean.dim)
def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: object = None, out: Tensor) -> tuple[Reduced]:
    dims = normal(dim, x)
    return (reduction(x, out, dims, keepdim, lambda g: g * (1 / size_of(x, dims)), shared=True),)


@rule(aten.amax.default, aten.amin.default)
def extremum(x: Tensor, dim: Dims = None, keepdim: bool = False, *, out: Tensor) -> tuple[Reduced]:
    """The cotangent is shared equally by the places that hold the extremum. A NaN is held by none: all get 0 / 0."""
    dims = normal(dim, x)
    hit = (x == spread(out, dims, keepdim, x.shape)).to(x.dtype)
    ties = hit.sum(dims, keepdim=True)
    return (reduction(x, out, dims, keepdim, lambda g: hit * (g / ties)),)


@rule(aten.max.dim, aten.min.dim)
def extremum_place(
    x: Tensor, dim: int, keepdim: bool = False, *, out: tuple[Tensor, Tensor]
) -> tuple[tuple[Reduced], tuple[None]]:
    """The cotangent goes to the one place that PyTorch names in its second output."""
    dims = normal([dim], x)
    places = torch.arange(x.shape[dim], device=x.device).view([-1 if d in dims else 1 for d in range(x.dim())])
    hit = places == spread(out[1], dims, keepdim, x.shape)
    return (reduction(x, out[0], dims, keepdim, lambda g: torch.where(hit, g, 0.0)),), (None,)


@rule(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False, *, out: Tensor) -> tuple[Reduced]:
    dims = normal(dim, x)
    share = torch.exp(x - spread(out, dims, keepdim, x.shape))
    return (reduction(x, out, dims, keepdim, lambda g: g * share),)


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, order: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: object = None, out: Tensor
) -> tuple[Reduced]:
    if order != 2:
        raise Unsupported(f"no rule for order {order}", op="aten.linalg_vector_norm", mend="kept as a VJP")
    dims = normal(dim, x)
    length = spread(out, dims, keepdim, x.shape)
    return (reduction(x, out, dims, keepdim, lambda g: torch.where(length == 0, 0.0, g * (x / length))),)


@rule(aten.glu.default)
def glu(x: Tensor, dim: int = -1, *, out: Tensor) -> tuple[Implicit | AcrossRows]:
    """The first half of `dim` times the sigmoid of the second."""
    a, b = x.chunk(2, dim)
    gate = torch.sigmoid(b)
    slope = a * gate * (1 - gate)

    def vjp(g: Tensor) -> Tensor:
        return torch.cat([g * gate, g * slope], dim)

    def links() -> Pattern:
        columns = numbers(out.shape[1:])
        return Pattern.one_per_row(torch.cat([columns, columns], dim).flatten(), columns.numel())

    return (Implicit(x, out, vjp, links) if dim % x.dim() else AcrossRows(vjp),)


def deviation(x: Tensor, dims: list[int], correction: float | None) -> Tensor:
    """The derivative of the variance: 2 (x - mean) / (n - correction)."""
    freedom = size_of(x, dims) - (1 if correction is None else correction)
    return (x - x.mean(dims, keepdim=True)) * (2 / freedom if freedom > 0 else math.inf)


@rule(aten.var.correction)
def var(
    x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False, out: Tensor
) -> tuple[Reduced]:
    dims = normal(dim, x)
    d = deviation(x, dims, correction)
    return (reduction(x, out, dims, keepdim, lambda g: g * d),)


@rule(aten.std.correction)
def std(
    x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False, out: Tensor
) -> tuple[Reduced]:
    dims = normal(dim, x)
    root = spread(out, dims, keepdim, x.shape)
    d = deviation(x, dims, correction) * (0.5 / root)
    return (reduction(x, out, dims, keepdim, lambda g: torch.where(root == 0, 0.0, g * d)),)


@rule(aten.var_mean.correction)
def var_mean(
    x: Tensor,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    out: tuple[Tensor, Tensor],
) -> tuple[tuple[Reduced], tuple[Reduced]]:
    of_var = var(x, dim, correction=correction, keepdim=keepdim, out=out[0])
    return of_var, mean(x, dim, keepdim, out=out[1])


# Softmax -------------------------------------------------------------------------------------------------------------


def normalised(x: Tensor, dim: int, out: Tensor, left: Tensor, right: Tensor | None) -> Reduced:
    """Along `dim` J^T is diag(right) - left right^T, right None for ones: every element acts on every other."""

    def vjp(g: Tensor) -> Tensor:
        weighted = g if right is None else g * right
        return weighted - left * weighted.sum(dim, keepdim=True)

    dim %= x.dim()
    if dim == 0:
        return AcrossRows(vjp)

    def links() -> Pattern:
        lines = numbers(x.shape[1:]).movedim(dim, -1).flatten(0, -2)  # [lines, length]
        rows, columns = torch.broadcast_tensors(lines[:, :, None], lines[:, None, :])
        return Pattern.from_entries(rows.flatten(), columns.flatten(), (lines.numel(), lines.numel()))

    def values() -> Tensor:
        """Entry (i, j) of a line stands in the row of i, and the j ascend."""
        eye = torch.eye(x.shape[dim], dtype=out.dtype, device=out.device)
        own = eye.view([-1 if d == dim else 1 for d in range(x.dim())] + [x.shape[dim]])
        entries = own - left.unsqueeze(-1)
        entries = entries if right is None else entries * right.movedim(dim, -1).unsqueeze(dim)
        return as_held(entries.flatten(1))

    blocks = "block-diagonal" if dim == x.dim() - 1 else "sparse"
    return Implicit(x, out, vjp, links, "dense" if x.dim() == 2 else blocks, values=values)


@rule(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> tuple[Reduced]:
    return (normalised(x, dim, out, out, out),)


@rule(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> tuple[Reduced]:
    return (normalised(x, dim, out, torch.exp(out), None),)
