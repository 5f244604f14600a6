"""The transposed Jacobian of a convolution: held as its weight and geometry, written out as CSR on demand."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bppsa.sparsity.operators.transposed import FromTensors
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.templates import fill
from bppsa.sparsity.patterns.windows import ConvPlan, Windows, conv_plan

aten = torch.ops.aten


@dataclass(frozen=True, eq=False, repr=False)
class Convolution(FromTensors):
    """x [B, Ci, *grid] to out [B, Co, *grid]; both are read for their shapes only.

    Args:
        weight: [Co, Ci / groups, *kernel]; of a transposed convolution [Ci, Co / groups, *kernel].
        mask: bool, shaped as the weight, False where it is pruned: those entries are not in the pattern.
    """

    x: Tensor
    out: Tensor
    weight: Tensor
    windows: Windows
    transposed: bool
    groups: int
    mask: Tensor | None = None
    structure: ClassVar[str] = "sparse"

    @property
    def held(self) -> int:
        return 1

    @functools.cached_property
    def plan(self) -> ConvPlan:
        plan = conv_plan(self.windows, self.transposed, self.groups, self.in_size, self.out_size)
        return plan if self.mask is None else plan.masked(self.mask)

    @property
    def pattern(self) -> Pattern:
        return self.plan.pattern

    @property
    def nnz(self) -> int:
        """Where nothing is pruned, entries of each dimension's windows multiply, and so do channels (BPPSA Table 1)."""
        if self.mask is not None:
            return self.pattern.nnz
        grid, places = (self.out_size, self.in_size) if self.transposed else (self.in_size, self.out_size)
        lines = (self.windows.line(d, *n)[0].nnz for d, n in enumerate(zip(grid[1:], places[1:], strict=True)))
        return math.prod(lines, start=grid[0] * places[0] // self.groups)

    def entries(self) -> Tensor:
        plan, weight = self.plan, self.weight.detach()
        if not plan.templates:
            return weight.flatten().index_select(0, plan.source.to(weight.device))
        if not self.transposed:  # [Co, Ci / groups, *kernel], to what each input channel meets
            weight = weight.unflatten(0, (self.groups, -1)).transpose(1, 2).flatten(0, 1)
        return fill(plan.templates, weight.flatten(2), plan.pattern.nnz // (len(weight) * weight.shape[1]))

    def mv(self, g: Tensor) -> Tensor:
        """A convolution over the same windows, from their side to the grid's or back."""
        w = self.windows
        beyond = [
            0 if self.transposed else size - end for size, end in zip(self.in_size[1:], self.reach(), strict=True)
        ]
        product = aten.convolution(
            g, self.weight, None, w.stride, w.padding, w.dilation, not self.transposed, beyond, self.groups
        )
        for d, size in enumerate(self.in_size[1:], 2):  # output_padding may have added windows that read padding only
            product = product if product.shape[d] == size else product.narrow(d, 0, size)
        return product

    def reach(self) -> list[int]:
        """How far the windows, one for each place of the output, reach in the input; not beyond its padding."""
        w = self.windows
        geometry = zip(self.out_size[1:], w.kernel, w.stride, w.padding, w.dilation, strict=True)
        return [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in geometry]
