"""Convolutions and pools of a row's channels on a grid, by the windows that they look through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.spelling.choosing import few

aten = torch.ops.aten


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """x: [B, C, *grid]; weight: [O, C / groups, *kernel]"""
    if transposed:
        return transposed_convolution(x, weight, bias, stride, padding, dilation, output_padding, groups)
    sizes = weight.shape[2:]
    stride, padding, dilation = (per_dimension(n, len(sizes)) for n in (stride, padding, dilation))
    seen = windows(padded(x, padding, 0.0), sizes, stride, dilation)
    grid = seen.shape[3:]
    outputs, depth = len(weight) // groups, weight.shape[1] * math.prod(sizes)
    seen = seen.reshape(-1, groups, 1, depth, math.prod(grid))
    product = (seen * weight.reshape(groups, outputs, depth, 1)).sum(3)
    result = product.view(-1, len(weight), *grid)
    return result if bias is None else result + bias.view(-1, *[1] * len(grid))


def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """The convolution of x, zeros put between its places, with the flipped kernel. weight: [C, O / groups, *kernel]"""
    sizes, channels = weight.shape[2:], weight.shape[1]
    axes, around = range(2, 2 + len(sizes)), list[int]()
    given = (per_dimension(n, len(sizes)) for n in (stride, padding, dilation, output_padding))
    for axis, size, step, pad, apart, more in zip(axes, sizes, *given, strict=True):
        x = spread(x, axis, step)
        reach = apart * (size - 1) - pad
        around = [reach, reach + more, *around]
    own = weight.flip(list(axes)).reshape(groups, -1, channels, *sizes).transpose(1, 2)
    own = own.reshape(groups * channels, -1, *sizes)
    padded_x = aten.constant_pad_nd(x, around)
    return convolution(padded_x, own, bias, [1], [0], dilation, False, [0], groups)


def spread(x: Tensor, axis: int, step: int) -> Tensor:
    """x with step - 1 zeros between its places."""
    if step == 1:
        return x
    apart = torch.stack([x, *[torch.zeros_like(x)] * (step - 1)], axis + 1).flatten(axis, axis + 1)
    return apart.narrow(axis, 0, (x.shape[axis] - 1) * step + 1)


def mean_pool(dimensions: int) -> Callable[..., Tensor]:
    def pooled(
        x: Tensor,
        sizes: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        sizes, stride, padding = (per_dimension(n, dimensions) for n in (sizes, stride or sizes, padding))
        if ceil_mode or (any(padding) and not count_include_pad):
            raise Unsupported("counts fewer places at the border", mend="leave ceil_mode and padding out")
        seen = windows(padded(x, padding, 0.0), sizes, stride, [1] * dimensions)
        return seen.sum(x.dim() - dimensions) / (divisor_override or math.prod(sizes))

    return pooled


def max_pool(
    x: Tensor,
    sizes: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest of each window, and their places as row-major numbers of the grid."""
    sizes, stride, padding, dilation = (per_dimension(n, 2) for n in (sizes, stride or sizes, padding, dilation))
    if ceil_mode:
        raise Unsupported("looks beyond the border", mend="leave ceil_mode out")
    axis, width = x.dim() - 2, x.shape[-1]
    seen = windows(padded(x, padding, -math.inf), sizes, stride, dilation)
    values, tap = torch.max(seen, axis)
    axes = zip(seen.shape[-2:], stride, padding, strict=True)
    rows, columns = (torch.arange(n) * step - pad for n, step, pad in axes)
    down, across = tap // sizes[1], tap % sizes[1]
    places = (rows[:, None] + down * dilation[0]) * width + columns + across * dilation[1]
    return values, places


def per_dimension(given: Sequence[int], dimensions: int) -> list[int]:
    return list(given) * dimensions if len(given) == 1 else list(given)


def padded(x: Tensor, padding: Sequence[int], value: float) -> Tensor:
    return aten.constant_pad_nd(x, [n for n in reversed(padding) for _ in range(2)], value)


def windows(x: Tensor, sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """What each tap of a window sees, [B, ..., taps, *grid], of x [B, ..., *grid]."""
    few(math.prod(sizes))
    first_axis, found = x.dim() - len(sizes), []
    for tap in itertools.product(*map(range, sizes)):
        seen = x
        for d, (at, size, step, apart) in enumerate(zip(tap, sizes, stride, dilation, strict=True), first_axis):
            first, count = at * apart, (x.shape[d] - apart * (size - 1) - 1) // step + 1
            seen = aten.slice.Tensor(seen, d, first, first + step * (count - 1) + 1, step)
        found.append(seen)
    return torch.stack(found, first_axis)
