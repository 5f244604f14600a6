"""A network's J^T written out by products of those of its ops, from the output back (BPPSA equation 3).

The patterns are multiplied once; a call then computes values only. Diagonal factors scale, and need no plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from bppsa.sparsity import pairs
from bppsa.sparsity.operators.implicit import Implicit
from bppsa.sparsity.operators.network import Network
from bppsa.sparsity.operators.simple import Diagonal, Identity
from bppsa.sparsity.operators.sparse import Sparse
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.patterns import union
from bppsa.sparsity.patterns.engine import engine
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.product import ProductPlan, counts
from bppsa.sparsity.patterns.union import SumPlan
from bppsa.sparsity.plans import product_plan, sum_plan

BYTES_A_PRODUCT = 12  # an entry of the result and a slot: an upper bound, before the patterns are multiplied
# Measured on one core of an AMD EPYC (Zen 4), for float32.
NS_A_PRODUCT, NS_AN_ENTRY, NS_AN_OP = 0.8, 0.5, 20_000


@dataclass(frozen=True, eq=False)
class FactorStep:
    """A factor times what was computed so far. plan: None where the factor scales rows, or is the first of all.

    pattern: of the result.
    """

    pattern: Pattern
    plan: ProductPlan | None = None

    def __call__(self, factor: TransposedJacobian, values: Tensor | None) -> Tensor:
        if values is None:
            return factor.entries()
        if self.plan is not None:
            return engine().multiply(self.plan, factor.entries(), values)
        return pairs.scaled(factor, Sparse(values, self.pattern), rows=True) if isinstance(factor, Diagonal) else values


@dataclass(frozen=True, eq=False)
class Multiplied:
    """The steps of each link of a network, in its order, and the sum where a value has been reached before.

    Args:
        pattern: of the network's J^T.
        products: multiplications of one call for one sample.
        ns: what a call takes, predicted.
    """

    steps: Sequence[tuple[Sequence[FactorStep], SumPlan | None]]
    pattern: Pattern
    products: int
    ns: float

    @classmethod
    def of(cls, network: Network, most_ns: float) -> Multiplied | None:
        """None where it takes longer than `most_ns`, or more than the budget, or where an op does not tell its values
        but by its products."""
        held: dict[int, Pattern | None] = {network.links[-1].target: None} if network.links else {}
        steps: list[tuple[Sequence[FactorStep], SumPlan | None]] = []
        total, ns = 0, 0.0
        for link in reversed(network.links):
            pattern, own = held[link.target], []
            for factor in reversed(link.factors):
                if isinstance(factor, Implicit) and factor.values is None:
                    return None
                products = 0 if pattern is None or scales(factor) else int(counts(factor.pattern, pattern)[-1])
                total += products
                entries = factor.nnz if pattern is None or not scales(factor) else pattern.nnz
                ns += network.held * (products * NS_A_PRODUCT + entries * NS_AN_ENTRY) + NS_AN_OP
                if ns > most_ns or products * BYTES_A_PRODUCT > network.budget:
                    return None
                own.append(step(factor, pattern))
                pattern = own[-1].pattern
            known = held.get(link.source)
            together = None if known is None or pattern is None else sum_plan(known, pattern)
            held[link.source] = pattern if together is None else together.c
            steps.append((own, together))
        found = held.get(0)
        return None if found is None else cls(steps, found, total, ns)

    def entries(self, network: Network) -> Tensor:
        """The values of J^T, [E] or [B, E], of the same network at any input."""
        held: dict[int, Tensor | None] = {network.links[-1].target: None}
        for link, (steps, together) in zip(reversed(network.links), self.steps, strict=True):
            values = held[link.target]
            for factor, step in zip(reversed(link.factors), steps, strict=True):
                values = step(factor, values)
            known = held.get(link.source)
            if together is not None and known is not None and values is not None:
                values = union.total(together, known, values)
            held[link.source] = values
        found = held[0]
        assert found is not None
        return found


def scales(factor: TransposedJacobian) -> bool:
    return isinstance(factor, (Identity, Diagonal))


def step(factor: TransposedJacobian, pattern: Pattern | None) -> FactorStep:
    """pattern: of what the factor multiplies; None for the identity."""
    if pattern is None:
        return FactorStep(factor.pattern)
    if scales(factor):
        return FactorStep(pattern)
    plan = product_plan(factor.pattern, pattern)
    return FactorStep(plan.c, plan)
