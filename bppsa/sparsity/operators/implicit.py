"""Transposed Jacobians known by what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bppsa.sparsity.operators.transposed import FromTensors
from bppsa.sparsity.patterns.colour import coloured
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Implicit(FromTensors):
    """J^T known by its product and its pattern, and never formed: slices, reductions, softmax.

    Args:
        x, out: the op's input [B, *n] and output [B, *m]; read for shape, dtype and device only.
        vjp: g [B, *m] to J^T g [B, *n].
        links: gives the pattern.
        shared: whether all rows have the same values. `vjp` takes any number of rows then.
        values: gives the entries; without it they are read off products with J^T.
    """

    x: Tensor
    out: Tensor
    vjp: Callable[[Tensor], Tensor]
    links: Callable[[], Pattern]
    structure: str = "sparse"
    shared: bool = False
    values: Callable[[], Tensor] | None = None

    @property
    def pattern(self) -> Pattern:
        return self.links()

    @property
    def held(self) -> int:
        return 1 if self.shared else self.x.shape[0]

    def entries(self) -> Tensor:
        if self.values is not None:
            return self.values()
        return coloured(self.vjp, self.pattern, self.out_size, self.held, self.x)

    def mv(self, g: Tensor) -> Tensor:
        return self.vjp(g)
