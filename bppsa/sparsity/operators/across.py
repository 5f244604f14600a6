"""Where rows meet: a cotangent passes, but no row has a J^T of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from torch import Size, Tensor

from bppsa.errors import Unsupported
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns.pattern import Pattern


class RowMixing(TransposedJacobian):
    """An argument without rows (a weight), or an op that mixes them: there is a VJP, but no matrix of a row."""

    structure: ClassVar[str] = "across rows"

    def __repr__(self) -> str:
        return f"{type(self).__name__}, which has no J^T of a row"

    def refuse(self) -> NoReturn:
        raise Unsupported("has no transposed Jacobian of a row, as it works across rows", mend="kept as a VJP")

    @property
    def in_size(self) -> Size:
        self.refuse()

    @property
    def out_size(self) -> Size:
        self.refuse()

    @property
    def held(self) -> int:
        self.refuse()

    @property
    def pattern(self) -> Pattern:
        self.refuse()

    def entries(self) -> Tensor:
        self.refuse()

    def dense(self) -> Tensor:
        self.refuse()


@dataclass(frozen=True, eq=False, repr=False)
class AcrossRows(RowMixing):
    """vjp: a cotangent of the op's whole output to one of its whole input."""

    vjp: Callable[[Tensor], Tensor]

    def mv(self, g: Tensor) -> Tensor:
        return self.vjp(g)


@dataclass(frozen=True, eq=False, repr=False)
class Outer(RowMixing):
    """The weight w [K, M] of x @ w: x [B, K], g [B, M] to x^T g, summed over the rows."""

    x: Tensor

    def mv(self, g: Tensor) -> Tensor:
        return self.x.t().mm(g)
