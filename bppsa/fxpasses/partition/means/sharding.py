"""How a value of the whole batch is made of the same value of each micro-batch.

The words are those of torch.distributed.tensor's placements: replicated, partial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, fx

ROWS = "rows"


@dataclass(frozen=True)
class ClassCount:
    """What a mean over classes divides by: the targets that are not ignored, or their classes' weights."""

    target: fx.Node
    weight: Tensor | fx.Node | None  # [classes]
    ignored: int | fx.Node  # such as the length of the sequence


@dataclass(frozen=True)
class SelectedCount:
    """How many elements a mask selects."""

    mask: fx.Node


# ROWS, or a number that the batch's arguments alone decide.
Quantity: TypeAlias = str | fx.Node | ClassCount | SelectedCount
Monomial: TypeAlias = frozenset[tuple[Quantity, int]]  # a product of quantities to powers
ONE: Monomial = frozenset()
BY_ROWS: Monomial = frozenset({(ROWS, 1)})


@dataclass(frozen=True)
class Replicated:
    """A value that all micro-batches have: of weights, constants and options."""


@dataclass(frozen=True)
class Partial:
    """With rows: a value for each row. Without rows: the batch's value is the sum of the micro-batches' values, each
    weighted by a monomial of quantities, divided by the batch's. If there are several weights, all have to be equal.

    A sum over rows has the weight 1, a mean over rows ROWS, and what is divided by a quantity has that one more.
    """

    weights: frozenset[Monomial]
    rows: bool

    @staticmethod
    def of(rows: bool, *weights: Monomial) -> Partial:
        return Partial(frozenset(weights or (ONE,)), rows)

    def over(self, quantity: Quantity, exponent: int = 1) -> frozenset[Monomial]:
        """The weights of what this divided by the quantity gives."""

        def one(weight: Monomial) -> Monomial:
            powers = dict(weight)
            powers[quantity] = powers.get(quantity, 0) + exponent
            return frozenset((q, power) for q, power in powers.items() if power)

        return frozenset(map(one, self.weights))


@dataclass(frozen=True)
class Inseparable:
    """Anything else: no sum over micro-batches gives it. node: where it came about."""

    node: fx.Node


Sharding: TypeAlias = Replicated | Partial | Inseparable


def inseparable(shardings: Iterable[Sharding]) -> Inseparable | None:
    """The first of them that no sum over micro-batches gives."""
    return next((sharding for sharding in shardings if isinstance(sharding, Inseparable)), None)


def are_replicated(shardings: Iterable[Sharding]) -> bool:
    return all(isinstance(sharding, Replicated) for sharding in shardings)


def is_rowwise(sharding: Sharding) -> bool:
    """Whether it is the same for all micro-batches, or has a value for each row that depends on no other."""
    return isinstance(sharding, Replicated) or sharding == Partial.of(True)
