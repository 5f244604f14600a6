"""What a scan over sparse transposed Jacobians costs, level by level, before any value is (BPPSA sections 3.3 and 5.3).

Products fill in: a level of the up-sweep multiplies what the level before has made denser. So the patterns themselves
are combined as a plan says, and multiplications, bytes and flops are counted on them. Diagonal factors cost nothing
here: they scale a neighbour, so a caller absorbs them first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bppsa.plan.levels import ScanPlan
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.plans import product_plan
from bppsa.sparsity.product import counts

Multiply = Callable[[Pattern, Pattern], Pattern]


@dataclass(frozen=True)
class LevelCost:
    """One level, for one sample.

    Args:
        segments: how many J^T are left after it.
        nnz: of these together.
        density: of the densest of them.
        flops: multiplications and additions of the level, 2 a product; of a matrix and a vector 2 nnz.
        critical: those of its dearest combination, which one worker has to do.
    """

    segments: int
    nnz: int
    density: float
    flops: int
    critical: int

    def bytes(self, itemsize: int, samples: int = 1) -> int:
        """Of the values of all J^T that are left."""
        return self.nnz * itemsize * samples


@dataclass(frozen=True)
class ChainCost:
    """linear: flops of the linear sweep down to the chain's input. up: the chain as it is, then after each level of the
    up-sweep. middle, down: flops of the plan's linear middle, and of each level of the down-sweep; the cotangent of the
    chain's input is not among the results of a scan (equation 4)."""

    linear: int
    up: tuple[LevelCost, ...]
    middle: int
    down: tuple[int, ...]

    @property
    def flops(self) -> int:
        """Of all of the plan."""
        return sum(level.flops for level in self.up) + self.middle + sum(self.down)


def chain_cost(plan: ScanPlan, patterns: Sequence[Pattern], multiply: Multiply | None = None) -> ChainCost:
    """Of `plan` over a chain whose element i has `patterns[i]`, N x M from the input to the output of its stage.

    Element i of the plan is the i-th from the end (equation 5), so a[left] . a[right] is J^T of the right times J^T of
    the left. multiply: the pattern of a product; by default that of its product plan.
    """
    if len(patterns) != plan.n:
        raise ValueError(f"a plan for {plan.n} elements and a chain of {len(patterns)}")
    multiply = multiply or (lambda a, b: product_plan(a, b).c)
    held: list[Pattern | None] = [None, *reversed(patterns)]  # a[0] is a vector, and what it reaches becomes one
    alive = set(range(1, plan.n + 1))
    up = [level(held, alive, [])]
    for pairs in plan.up:
        flops = []
        for left, right in pairs:
            first, then = held[right], held[left]
            assert first is not None
            flops.append(2 * (first.nnz if then is None else int(counts(first, then)[-1])))
            held[right] = None if then is None else multiply(first, then)
            alive -= {left} if then is not None else {right}
        up.append(level(held, alive, flops))
    middle = sum(2 * nnz(held[place]) for place in plan.middle[1:-1])
    down = tuple(sum(2 * nnz(held[left]) for left, _ in pairs) for pairs in plan.down)
    return ChainCost(2 * sum(p.nnz for p in patterns), tuple(up), middle, down)


def nnz(pattern: Pattern | None) -> int:
    """Of a place that holds a vector none: what is there only moves."""
    return 0 if pattern is None else pattern.nnz


def level(held: Sequence[Pattern | None], alive: set[int], flops: Sequence[int]) -> LevelCost:
    left = [p for place in alive if (p := held[place]) is not None]
    density = max((p.nnz / max(p.shape[0] * p.shape[1], 1) for p in left), default=0.0)
    return LevelCost(len(left), sum(p.nnz for p in left), density, sum(flops), max(flops, default=0))
