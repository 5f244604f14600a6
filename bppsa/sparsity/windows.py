"""Windows that slide over a grid: which entries of a convolution's J^T can be non-zero, and which weight each reads.

J^T of a convolution is a Kronecker product of full blocks of channels, one block a group, with one pattern a dimension
of the grid (BPPSA section 3.4 and appendix D, for any kernel, stride, padding, dilation and number of groups).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Size, Tensor

from bppsa.sparsity.pattern import Pattern


@dataclass(frozen=True)
class Windows:
    """Along each dimension of the grid, window `o` holds places o * stride - padding + tap * dilation, for each tap.

    A convolution reads its input through windows, one for each place of its output; transposed, it writes its output
    through windows, one for each place of its input.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def line(self, d: int, size: int, count: int) -> tuple[Pattern, Tensor]:
        """Dimension d, `size` long under `count` windows: the pattern [size, count], and the tap of each entry."""
        taps = torch.arange(self.kernel[d])
        window = torch.arange(count)[:, None].expand(-1, len(taps))
        place = window * self.stride[d] - self.padding[d] + taps * self.dilation[d]
        inside = (place >= 0) & (place < size)
        place, window, tap = place[inside], window[inside], taps.expand(count, -1)[inside]
        order = torch.argsort(place * count + window)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(place, minlength=size).cumsum(0)])
        return Pattern(indptr, window[order], (size, count)), tap[order]

    def grid(self, size: Sequence[int], count: Sequence[int]) -> tuple[Pattern, Tensor]:
        """All dimensions: the pattern [places, windows], and the number of each entry's tap."""
        pattern, taps = self.line(0, size[0], count[0])
        for d in range(1, len(size)):
            line, tap = self.line(d, size[d], count[d])
            pattern, taps = together(pattern, taps * self.kernel[d], line, tap)
        return pattern, taps


def together(a: Pattern, left: Tensor, b: Pattern, right: Tensor) -> tuple[Pattern, Tensor]:
    """The Kronecker product, each entry with the sum of the two numbers of its factors."""
    pattern, place = Pattern.kron(a, b)
    total = torch.empty(pattern.nnz, dtype=torch.int64)
    total[place] = left[:, None] + right
    return pattern, total


def transposed(pattern: Pattern, numbers: Tensor) -> tuple[Pattern, Tensor]:
    """The transpose, its entries' numbers brought along."""
    order = torch.argsort(pattern.indices, stable=True)
    indptr = torch.bincount(pattern.indices, minlength=pattern.shape[1]).cumsum(0)
    indptr = torch.cat([indptr.new_zeros(1), indptr])
    return Pattern(indptr, pattern.rows[order], pattern.shape[::-1]), numbers[order]


@dataclass(frozen=True, eq=False)
class ConvPlan:
    """Entry e of J^T is element source[e] of the flattened weight. source: int64 [E] on the CPU."""

    pattern: Pattern
    source: Tensor

    def masked(self, mask: Tensor) -> ConvPlan:
        """Without the entries that read a pruned weight: mask is bool, True where a weight is kept."""
        kept = mask.cpu().flatten()[self.source]
        return ConvPlan(self.pattern.keep(kept), self.source[kept])


@functools.lru_cache(maxsize=64)
def conv_plan(windows: Windows, is_transposed: bool, groups: int, in_size: Size, out_size: Size) -> ConvPlan:
    """in_size [Ci, *grid], out_size [Co, *grid]; the weight is [Co, Ci / groups, *kernel], and of a transposed
    convolution [Ci, Co / groups, *kernel]."""
    wide, narrow = (out_size, in_size) if not is_transposed else (in_size, out_size)
    channels = Pattern.block_diagonal(groups, in_size[0] // groups, out_size[0] // groups)
    per_group = narrow[0] // groups
    co, ci = channels.indices, channels.rows
    first, second = (co, ci) if not is_transposed else (ci, co)
    filters = (first * per_group + second % per_group) * Size(windows.kernel).numel()
    assert len(wide) == len(narrow)
    if is_transposed:
        grid, taps = transposed(*windows.grid(out_size[1:], in_size[1:]))
    else:
        grid, taps = windows.grid(in_size[1:], out_size[1:])
    return ConvPlan(*together(channels, filters, grid, taps))
