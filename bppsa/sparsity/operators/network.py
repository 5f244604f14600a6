"""The transposed Jacobian of many ops at once: never multiplied out, a product with it is back-propagation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bppsa.errors import BudgetError, Reason
from bppsa.sparsity.operators.transposed import FromTensors, TransposedJacobian
from bppsa.sparsity.patterns import reach
from bppsa.sparsity.patterns.colour import coloured
from bppsa.sparsity.patterns.pattern import Pattern

BYTES_AN_ENTRY = 40  # while the pattern of an op is made


@dataclass(frozen=True, eq=False)
class Link:
    """One op: J^T of value `target` with respect to value `source`, as factors from the source's side."""

    source: int
    target: int
    factors: tuple[TransposedJacobian, ...]
    path: str = ""
    op: str = ""

    def mv(self, g: Tensor) -> Tensor:
        for factor in reversed(self.factors):
            g = factor.mv(g)
        return g

    def rows(self, rows: reach.ReachingRows) -> reach.ReachingRows:
        for factor in reversed(self.factors):
            rows = rows if factor.structure in ("identity", "diagonal") else reach.product(factor.pattern, rows)
        return rows


@dataclass(frozen=True, eq=False, repr=False)
class Network(FromTensors):
    """Values are numbered in the order of their computation, and links stand in the order of their targets.

    Args:
        x, out: the input [B, *n] and the output [B, *m]; read for shape, dtype and device only.
        links: every way from value 0, the input, to the last one, the output.
        budget: bytes that the patterns may take.
    """

    x: Tensor
    out: Tensor
    links: Sequence[Link]
    budget: int
    structure: ClassVar[str] = "sparse"

    def __repr__(self) -> str:
        """Leaves the non-zeros out: their pattern may be beyond the budget."""
        n, m = self.shape
        ops = sum(any(factor.structure != "identity" for factor in link.factors) for link in self.links)
        return f"Network {n} x {m} of {ops} ops"

    @functools.cached_property
    def held(self) -> int:
        return max((factor.held for link in self.links for factor in link.factors), default=1)

    @functools.cached_property
    def pattern(self) -> Pattern:
        """Raises BudgetError where the patterns of the ops take more than the budget."""
        known = {self.links[-1].target: reach.identity(self.shape[1])} if self.links else {}
        self.check_budget()
        for link in reversed(self.links):
            known[link.source] = reach.union(known.get(link.source), link.rows(known[link.target]))
        return reach.unpack(known.get(0, [0] * self.shape[0]), self.shape[1])

    def check_budget(self) -> None:
        for link in self.links:
            for factor in link.factors:
                n, m = factor.shape
                needed = factor.nnz * BYTES_AN_ENTRY if factor.structure not in ("identity", "diagonal") else 0
                if needed > self.budget:
                    what = (
                        f"J^T is {n} x {m} with {factor.nnz} non-zeros, {needed >> 20} MB against {self.budget >> 20}"
                    )
                    mend = "raise budget, take a smaller input, or use transposed_jacobian(model, x).mv"
                    raise BudgetError(str(Reason(what, link.op, mend, link.path)))

    def entries(self) -> Tensor:
        return coloured(self.mv, self.pattern, self.out_size, self.held, self.x)

    def mv(self, g: Tensor) -> Tensor:
        if not self.links:
            return g.new_zeros(g.shape[0], *self.in_size)
        cotangents = {self.links[-1].target: g}
        for link in reversed(self.links):
            own = link.mv(cotangents[link.target])
            known = cotangents.get(link.source)
            cotangents[link.source] = own if known is None else known + own
        return cotangents[0]
