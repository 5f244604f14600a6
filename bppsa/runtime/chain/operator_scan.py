"""Run a scan plan on the stages of a feed-forward chain: from the cotangent at the end of a segment to those at the
ends of all its stages (BPPSA Algorithm 1 on the array of equation 5; no cotangent enters on the way)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bppsa.plan.levels import Places, ScanPlan
from bppsa.plan.strategy import Division
from bppsa.runtime.chain.stages import Element, ElementSpan
from bppsa.sparsity.algebra import compose
from bppsa.sparsity.operators.transposed import TransposedJacobian


def cotangents(division: Division, elements: Sequence[Element], g: Tensor) -> list[Tensor]:
    """The cotangent that enters each element, from the last of the chain, which g enters, to the first."""
    length = division.length
    chunks = [elements[at : at + length] for at in range(0, len(elements), length)]
    spans = [chunk[0] if len(chunk) == 1 else ElementSpan(chunk) for chunk in chunks]
    entering = OperatorScan(division.scan, spans, g).run()
    found = []
    for chunk, g_chunk in zip(chunks, entering, strict=True):
        found.append(g_chunk)
        for element in chunk[:-1]:
            found.append(element.mv(found[-1]))
    return found


class Formed:
    """A product of elements."""

    def __init__(self, operator: TransposedJacobian) -> None:
        self.operator = operator

    def mv(self, g: Tensor) -> Tensor:
        return self.operator.mv(g)

    def formed(self) -> TransposedJacobian:
        return self.operator


class OperatorScan:
    """The array of Algorithm 1. a[0] and what it has met are vectors, all others elements."""

    def __init__(self, plan: ScanPlan, elements: Sequence[Element], g: Tensor) -> None:
        self.plan = plan
        self.a: list[Tensor | Element | None] = [g, *elements]

    def run(self) -> list[Tensor]:
        for places in self.plan.up:
            self.up(places)
        self.linear(self.plan.middle)
        for places in self.plan.down:
            self.down(places)
        return [self.vector(place) for place in range(1, self.plan.n + 1)]

    def up(self, places: Sequence[Places]) -> None:
        """a[right] <- a[left] . a[right]: for transposed Jacobians the product a[right] a[left]."""
        for left, right in places:
            if right == self.plan.n:
                continue  # line 7 writes the identity over it, unread
            a, b = self.a[left], self.element(right)
            if isinstance(a, Tensor):
                self.a[right] = b.mv(a)
            else:
                self.a[right] = Formed(compose(b.formed(), self.element(left).formed()))

    def linear(self, places: Sequence[int]) -> None:
        """Exclusive, in place: the identity, which nobody reads, then what came before each place."""
        entering: Tensor | None = None
        for place in places:
            after = None
            if place != places[-1]:
                after = self.vector(place) if entering is None else self.element(place).mv(entering)
            self.a[place], entering = entering, after

    def down(self, places: Sequence[Places]) -> None:
        """(a[left], a[right]) <- (a[right], a[left] applied to a[right]): the operands reversed, as line 13 has it."""
        for left, right in places:
            a, entering = self.a[left], self.a[right]
            if isinstance(a, Tensor):  # a[right] is the identity
                self.a[left], self.a[right] = None, a
            else:
                assert isinstance(entering, Tensor)
                self.a[left], self.a[right] = entering, self.element(left).mv(entering)

    def vector(self, place: int) -> Tensor:
        value = self.a[place]
        assert isinstance(value, Tensor)
        return value

    def element(self, place: int) -> Element:
        value = self.a[place]
        assert value is not None
        assert not isinstance(value, Tensor)
        return value
