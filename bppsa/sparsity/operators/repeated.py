"""One J^T for each of many places of a sample: a matrix product along the last dimension, `x [B, *t, K] @ w [K, M]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Size, Tensor

from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Repeated(TransposedJacobian):
    """The Kronecker product of an identity and `block`: block-diagonal, and all blocks are the same.

    Args:
        block: J^T of one place, K x M, held once.
        places: [*t], the dimensions of a sample before the last.
    """

    block: TransposedJacobian
    places: Size
    structure: ClassVar[str] = "block-diagonal"

    @property
    def in_size(self) -> Size:
        return Size((*self.places, self.block.shape[0]))

    @property
    def out_size(self) -> Size:
        return Size((*self.places, self.block.shape[1]))

    @property
    def held(self) -> int:
        return 1

    @property
    def nnz(self) -> int:
        return self.places.numel() * self.block.nnz

    @property
    def pattern(self) -> Pattern:
        return Pattern.repeated(self.places.numel(), self.block.pattern)

    def entries(self) -> Tensor:
        return self.block.entries().repeat(self.places.numel())

    def mv(self, g: Tensor) -> Tensor:
        return self.block.mv(g.reshape(-1, self.block.shape[1])).reshape(g.shape[0], *self.in_size)
