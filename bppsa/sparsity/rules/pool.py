"""Max pools: one of a window's elements passes, the one PyTorch took; which, is data, and the windows are shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor, ops

from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.patterns.engine import engine
from bppsa.sparsity.patterns.flat import as_held
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.windows import Windows
from bppsa.sparsity.rules.conv import each
from bppsa.sparsity.rules.registry import rule

aten = ops.aten
MakePattern = Callable[[], Pattern]  # of one channel


def selected(x: Tensor, out: tuple[Tensor, Tensor], grid: MakePattern) -> tuple[tuple[Implicit], tuple[None]]:
    """x [B, C, *grid]; out: the maxima and their places in the grid, [B, C, *windows] both."""
    y, place = out
    planes, places = x.shape[1], x.shape[2:].numel()

    def vjp(g: Tensor) -> Tensor:
        zeros = g.new_zeros(g.shape[0], planes, places)
        index = place.flatten(2).expand(g.shape[0], -1, -1)
        return zeros.scatter_add(2, index, g.flatten(2)).view(-1, *x.shape[1:])

    def links() -> Pattern:
        return Pattern.kron(Pattern.identity(planes), grid())[0]

    def values() -> Tensor:
        return as_held(engine().chosen(grid(), place, y.dtype))

    return (Implicit(x, y, vjp, links, values=values),), (None,)


@functools.lru_cache(maxsize=64)
def sliding(windows: Windows, size: Size, count: Size) -> Pattern:
    return windows.grid(size, count)[0]


@rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    out: tuple[Tensor, Tensor],
) -> tuple[tuple[Implicit], tuple[None]]:
    k, p, d = (each(n, (0,) * (x.dim() - 2)) for n in (kernel, padding, dilation))
    windows = Windows(k, each(stride, k) if stride else k, p, d)
    return selected(x, out, lambda: sliding(windows, x.shape[2:], out[0].shape[2:]))


@rule(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(
    x: Tensor, size: Sequence[int], *, out: tuple[Tensor, Tensor]
) -> tuple[tuple[Implicit], tuple[None]]:
    return selected(x, out, lambda: adapted(x.shape[2:], out[0].shape[2:]))


@functools.lru_cache(maxsize=64)
def adapted(size: Size, count: Size) -> Pattern:
    """Window o of n along a dimension of length l holds places floor(o l / n) up to ceil((o + 1) l / n)."""
    pattern = Pattern.identity(1)
    for length, n in zip(size, count, strict=True):
        place, window = torch.arange(length)[:, None], torch.arange(n)
        inside = (place >= window * length // n) & (place < -(-(window + 1) * length // n))
        pattern = Pattern.kron(pattern, Pattern.from_mask(inside))[0]
    return pattern
