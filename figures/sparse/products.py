"""What a scan over sparse transposed Jacobians costs, level by level, before any value is (BPPSA sections 3.3 and 5.3).

Products fill in: a level of the up-sweep multiplies what the level before has made denser. So the patterns themselves
are combined as a plan says, and multiplications, bytes and flops are counted on them. Diagonal factors cost nothing
here: they scale a neighbour, so a caller absorbs them first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan.levels import ScanPlan
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.product import counts
from bppsa.sparsity.plans import product_plan


@dataclass(frozen=True)
class ProductStep:
    """One combination, for one sample: a matrix [N, K] times one [K, M], or times a vector, with M = 1.

    flops: multiplications and additions, 2 a product of two entries that can be non-zero.
    """

    shape: tuple[int, int, int]  # (N, K, M)
    flops: int

    @property
    def dense(self) -> int:
        """Multiplications where no entry is known to be zero."""
        return math.prod(self.shape)


Steps = tuple[ProductStep, ...]


@dataclass(frozen=True)
class LevelCost:
    """One level of the up-sweep, for one sample.

    Args:
        segments: how many J^T are left after it.
        nnz: of these together.
        density: of the densest of them.
        steps: its combinations.
    """

    segments: int
    nnz: int
    density: float
    steps: Steps

    @property
    def flops(self) -> int:
        return total(self.steps)

    @property
    def critical(self) -> int:
        return dearest(self.steps)

    def bytes(self, itemsize: int, samples: int = 1) -> int:
        """The bytes of the values of all J^T that are left."""
        return self.nnz * itemsize * samples


@dataclass(frozen=True)
class ChainCost:
    """linear: flops of the linear sweep down to the chain's input. up: the chain as it is, then after each level of the
    up-sweep. middle, down: steps of the plan's linear middle, and of each level of the down-sweep; the cotangent of the
    chain's input is not among the results of a scan (equation 4)."""

    linear: int
    up: tuple[LevelCost, ...]
    middle: Steps
    down: tuple[Steps, ...]

    @property
    def steps(self) -> Steps:
        """All of the plan, in its order."""
        phases = (*(level.steps for level in self.up), self.middle, *self.down)
        return tuple(step for steps in phases for step in steps)

    @property
    def flops(self) -> int:
        """The flops of all of the plan."""
        return total(self.steps)

    @property
    def critical(self) -> int:
        """The flops of what has to follow each other, with a worker for each step: the dearest step of each level, and
        the whole middle."""
        return sum(level.critical for level in self.up) + total(self.middle) + sum(map(dearest, self.down))


def total(steps: Steps) -> int:
    return sum(step.flops for step in steps)


def dearest(steps: Steps) -> int:
    return max((step.flops for step in steps), default=0)


def chain_cost(plan: ScanPlan, patterns: Sequence[Pattern]) -> ChainCost:
    """The cost of `plan` over a chain whose element i has `patterns[i]`, N x M from the input to the output of its
    stage.

    Element i of the plan is the i-th from the end (equation 5), so a[left] . a[right] is J^T of the right times J^T of
    the left.
    """
    if len(patterns) != plan.n:
        raise ValueError(f"a plan for {plan.n} elements and a chain of {len(patterns)}")
    held: list[Pattern | None] = [None, *reversed(patterns)]  # a[0] is a vector, and what it reaches becomes one
    alive = set(range(1, plan.n + 1))
    up = [level(held, alive, ())]
    for pairs in plan.up:
        steps = []
        for left, right in pairs:
            first, then = held[right], held[left]
            assert first is not None
            steps.append(product(first, then))
            held[right] = None if then is None else product_plan(first, then).c
            alive -= {left} if then is not None else {right}
        up.append(level(held, alive, tuple(steps)))
    middle = applied(held, plan.middle[1:-1])
    down = tuple(applied(held, [left for left, _ in pairs]) for pairs in plan.down)
    return ChainCost(2 * sum(p.nnz for p in patterns), tuple(up), middle, down)


def product(a: Pattern, b: Pattern | None) -> ProductStep:
    """b: None for a vector."""
    if b is None:
        return ProductStep((*a.shape, 1), 2 * a.nnz)
    return ProductStep((*a.shape, b.shape[1]), 2 * int(counts(a, b)[-1]))


def applied(held: Sequence[Pattern | None], places: Sequence[int]) -> Steps:
    """What is at these places, times a vector; a place that holds a vector itself has it moved, which is no step."""
    return tuple(product(pattern, None) for place in places if (pattern := held[place]) is not None)


def level(held: Sequence[Pattern | None], alive: set[int], steps: Steps) -> LevelCost:
    left = [p for place in alive if (p := held[place]) is not None]
    density = max((p.nnz / max(p.shape[0] * p.shape[1], 1) for p in left), default=0.0)
    return LevelCost(len(left), sum(p.nnz for p in left), density, steps)
