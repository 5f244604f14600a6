"""A transposed Jacobian written out: the values of its pattern's entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Size, Tensor

from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.engine import engine
from bppsa.sparsity.patterns.flat import flat
from bppsa.sparsity.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Sparse(TransposedJacobian):
    """J^T in CSR. An entry outside the pattern is a structural zero: it meets nothing, not even NaN or Inf.

    Args:
        values: [E] shared by the batch, or [B, E], in the order of the pattern.
        static: the pattern.
        sizes: a row of the input and of the output; (N,) and (M,) where not given.
    """

    values: Tensor
    static: Pattern
    sizes: tuple[Size, Size] | None = None
    structure: ClassVar[str] = "sparse"

    @classmethod
    def of(cls, operator: TransposedJacobian) -> Sparse:
        """Any operator, written out."""
        if isinstance(operator, Sparse):
            return operator
        return cls(operator.entries(), operator.pattern, (operator.in_size, operator.out_size))

    @property
    def in_size(self) -> Size:
        return self.sizes[0] if self.sizes else Size(self.pattern.shape[:1])

    @property
    def out_size(self) -> Size:
        return self.sizes[1] if self.sizes else Size(self.pattern.shape[1:])

    @property
    def pattern(self) -> Pattern:
        return self.static

    @property
    def held(self) -> int:
        return 1 if self.values.dim() == 1 else len(self.values)

    def entries(self) -> Tensor:
        return self.values[0] if self.values.dim() == 2 and self.held == 1 else self.values

    def mv(self, g: Tensor) -> Tensor:
        return engine().mv(self.pattern, self.entries(), flat(g)).reshape(len(g), *self.in_size)
