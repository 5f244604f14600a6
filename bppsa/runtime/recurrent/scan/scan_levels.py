"""Run a scan plan on pairs: from each chunk's (J^T, b) to the cotangent that enters each chunk (BPPSA equation 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.plan.levels import Places, ScanPlan
from bppsa.runtime.recurrent.scan.pairs import Pair, ScaledRows, apply, compose


def exclusive(plan: ScanPlan, pairs: Pair, first: ScaledRows) -> ScaledRows:
    """pairs: [n, ...], the last chunk's first; first: the cotangent after the last step. Gives [n, ...]: the cotangent
    that enters each chunk, in the order of `pairs`."""
    return PairScan(plan, pairs, first).run()


class PairScan:
    """The array of Algorithm 1. Places that a[0] has reached hold vectors, all others pairs."""

    def __init__(self, plan: ScanPlan, pairs: Pair, first: ScaledRows) -> None:
        self.plan = plan
        self.pairs = pairs.map(lambda tensor: torch.cat([tensor[:1], tensor]))  # a[0] is no pair; its place is not read
        self.vectors = ScaledRows(
            torch.zeros_like(self.pairs.vector.values), torch.zeros_like(self.pairs.vector.exponents)
        )
        self.vectors.put(at([0]), ScaledRows(first.values.unsqueeze(0), first.exponents.unsqueeze(0)))
        self.is_vector = [True] + [False] * plan.n

    def run(self) -> ScaledRows:
        for places in self.plan.up:
            self.up(places)
        self.linear(self.plan.middle)
        for places in self.plan.down:
            self.down(places)
        return self.vectors[at(range(1, self.plan.n + 1))]

    def up(self, places: Sequence[Places]) -> None:
        """a[right] <- a[left] . a[right]: for transposed Jacobians the product a[right] a[left]."""
        reached = [(left, right) for left, right in places if self.is_vector[left]]
        for left, right in reached:
            self.vectors.put(at([right]), apply(self.pairs[at([right])], self.vectors[at([left])]))
            self.is_vector[right] = True
        rest = [(left, right) for left, right in places if not self.is_vector[left]]
        if rest:
            before, after = (at(side) for side in zip(*rest, strict=True))
            self.pairs.put(after, compose(self.pairs[after], self.pairs[before]))

    def linear(self, places: Sequence[int]) -> None:
        """Exclusive, in place: the identity, which nobody reads, then what came before each place."""
        entering = self.vectors[at(places[:1])]
        for place in places[1:]:
            self.vectors.put(at([place]), entering)
            if place != places[-1]:
                entering = apply(self.pairs[at([place])], entering)

    def down(self, places: Sequence[Places]) -> None:
        """(a[left], a[right]) <- (a[right], a[left] applied to a[right]): the operands reversed, as line 13 has it."""
        moved = [(left, right) for left, right in places if self.is_vector[left]]  # a[right] is the identity there
        for left, right in moved:
            self.vectors.put(at([right]), self.vectors[at([left])])
        rest = [(left, right) for left, right in places if not self.is_vector[left]]
        if rest:
            before, after = (at(side) for side in zip(*rest, strict=True))
            entering = self.vectors[after]
            self.vectors.put(after, apply(self.pairs[before], entering))
            self.vectors.put(before, entering)


def at(places: Sequence[int]) -> Tensor:
    return torch.tensor(list(places))
