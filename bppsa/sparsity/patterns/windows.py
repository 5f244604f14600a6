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

from bppsa.sparsity.patterns.pattern import Pattern, starts_of
from bppsa.sparsity.patterns.templates import Template, TemplateLine, templates


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

    def line(self, d: int, size: int, count: int) -> TemplateLine:
        """Dimension d, `size` long under `count` windows: the pattern [size, count], and the tap of each entry."""
        taps = torch.arange(self.kernel[d])
        window = torch.arange(count)[:, None].expand(-1, len(taps))
        place = window * self.stride[d] - self.padding[d] + taps * self.dilation[d]
        inside = (place >= 0) & (place < size)
        place, window, tap = place[inside], window[inside], taps.expand(count, -1)[inside]
        order = torch.argsort(place * count + window)
        return Pattern(starts_of(torch.bincount(place, minlength=size)), window[order], (size, count)), tap[order]

    def grid(self, size: Sequence[int], count: Sequence[int]) -> TemplateLine:
        """All dimensions: the pattern [places, windows], and the number of each entry's tap."""
        return crossed([self.line(d, *n) for d, n in enumerate(zip(size, count, strict=True))], self.kernel)


def crossed(lines: Sequence[TemplateLine], kernel: Sequence[int]) -> TemplateLine:
    """The grid of these lines: its pattern, and the number of each entry's tap in the whole kernel."""
    pattern, taps = lines[0]
    for (line, tap), length in zip(lines[1:], kernel[1:], strict=True):
        pattern, taps = together(pattern, taps * length, line, tap)
    return pattern, taps


def together(a: Pattern, left: Tensor, b: Pattern, right: Tensor) -> tuple[Pattern, Tensor]:
    """The Kronecker product, each entry with the sum of the two numbers of its factors."""
    pattern, place = Pattern.kron(a, b)
    total = torch.empty(pattern.nnz, dtype=torch.int64)
    total[place] = left[:, None] + right
    return pattern, total


def transposed(pattern: Pattern, numbers: Tensor) -> TemplateLine:
    """The transpose, its entries' numbers brought along."""
    order = torch.argsort(pattern.indices, stable=True)
    indptr = starts_of(torch.bincount(pattern.indices, minlength=pattern.shape[1]))
    return Pattern(indptr, pattern.rows[order], pattern.shape[::-1]), numbers[order]


@dataclass(frozen=True, eq=False)
class ConvPlan:
    """Entry e of J^T is element source[e] of the flattened weight.

    source: int64 [E] on the CPU. templates: the same for runs of rows, where the rows are few kinds.
    """

    pattern: Pattern
    source: Tensor
    templates: tuple[Template, ...] = ()

    def masked(self, mask: Tensor) -> ConvPlan:
        """The plan without the entries that read a pruned weight: mask is bool, True where a weight is kept."""
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
        lines = [transposed(*windows.line(d, *n)) for d, n in enumerate(zip(out_size[1:], in_size[1:], strict=True))]
    else:
        lines = [windows.line(d, *n) for d, n in enumerate(zip(in_size[1:], out_size[1:], strict=True))]
    return ConvPlan(*together(channels, filters, *crossed(lines, windows.kernel)), templates(lines, windows.kernel))
