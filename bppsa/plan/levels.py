"""Scan plans as pure data: which elements are combined in which level (BPPSA Algorithm 1, sections 3.2, 3.6 and 5.3).

A scan runs over a[0], the cotangent that enters at the end of the chain, and a[1] to a[n], the pairs (J^T, b) of its n
elements from the last to the first (equation 5). Afterwards a[i + 1] is the cotangent that enters element i + 1, and
a[0] is the identity (equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass

Places = tuple[int, int]  # (left, right): the places of Algorithm 1's operands


@dataclass(frozen=True)
class ScanPlan:
    """Levels run one after the other, the pairs (left, right) of a level all at once.

    up: a[right] <- a[left] . a[right]. middle: an exclusive linear scan over these places, in place. down: a[left] <-
    a[right] while a[right] <- a[left] applied to a[right], the operands reversed as line 13 of Algorithm 1 has it.
    """

    n: int
    up: tuple[tuple[Places, ...], ...]
    middle: tuple[int, ...]
    down: tuple[tuple[Places, ...], ...]


@dataclass(frozen=True)
class Complexity:
    """What a plan costs on unboundedly many workers, as section 3.6 counts it."""

    steps: int  # combinations that have to follow each other
    work: int  # combinations in all
    products: int  # of these, products of two matrices; the others apply a matrix to a vector

    def flops(self, width: int) -> int:
        """The flops of all combinations."""
        return 2 * (self.products * width**2 * (width + 1) + (self.work - self.products) * width**2)


def depth(n: int) -> int:
    """ceil(log2(n + 1)): the levels of a tree over a[0] to a[n]."""
    return n.bit_length()


def level(n: int, d: int) -> tuple[Places, ...]:
    """Lines 2 and 3 of Algorithm 1, for any n."""
    return tuple((i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)) for i in range(0, n - 2**d + 1, 2 ** (d + 1)))


def hybrid(n: int, up_levels: int) -> ScanPlan:
    """`up_levels` levels of the up-sweep, a linear scan over what is left, the matching levels of the down-sweep
    (section 5.3)."""
    up_levels = min(up_levels, depth(n))
    ends = tuple(min(i + 2**up_levels - 1, n) for i in range(0, n + 1, 2**up_levels))
    # with one end left its total is never asked for, and the level that would compute it is left out, as in line 1
    up = range(up_levels - 1 if len(ends) == 1 else up_levels)
    return ScanPlan(n, tuple(level(n, d) for d in up), ends, tuple(level(n, d) for d in reversed(range(up_levels))))


def blelloch(n: int) -> ScanPlan:
    """Algorithm 1."""
    return hybrid(n, depth(n))


def linear(n: int) -> ScanPlan:
    """One after the other: back-propagation itself."""
    return hybrid(n, 0)


def complexity(plan: ScanPlan) -> Complexity:
    """Counted on the plan. Places that hold a vector, as a[0] does, make a combination one with a vector."""
    vector = [True] + [False] * plan.n
    products = work = 0
    for pairs in plan.up:
        for left, right in pairs:
            products += not vector[left]
            vector[right] = vector[left]
        work += len(pairs)
    applied = max(len(plan.middle) - 2, 0)  # the identity and a[0] reach their places by moving
    downs = [sum(not vector[left] for left, _ in pairs) for pairs in plan.down]
    steps = len(plan.up) + applied + sum(count > 0 for count in downs)
    return Complexity(steps, work + applied + sum(downs), products)
