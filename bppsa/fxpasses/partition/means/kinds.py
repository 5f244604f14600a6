"""What a value of one micro-batch is to the same value of the whole batch."""

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
    ignored: int


@dataclass(frozen=True)
class SelectedCount:
    """How many elements a mask selects."""

    mask: fx.Node


# ROWS, or a number that the batch's arguments alone decide.
Quantity: TypeAlias = str | fx.Node | ClassCount | SelectedCount
Way: TypeAlias = frozenset[tuple[Quantity, int]]  # quantities with exponents


@dataclass(frozen=True)
class Same:
    """A value that all micro-batches have: of weights, constants and options."""


@dataclass(frozen=True)
class Part:
    """With rows: a value for each row. Without rows: the batch's value is the sum of the micro-batches' values, each
    weighted by the product, over a way, of its quantity divided by the batch's quantity. If there are several ways, all
    have to give the same weight.

    A sum over rows has the empty way, a mean over rows ROWS, and what is divided by a quantity has that one more.
    """

    ways: frozenset[Way]
    rows: bool


@dataclass(frozen=True)
class Unshared:
    """Anything else. node: where it came about."""

    node: fx.Node


Kind: TypeAlias = Same | Part | Unshared
PLAIN: Way = frozenset()


def part(rows: bool, *ways: Way) -> Part:
    return Part(frozenset(ways or (PLAIN,)), rows)


def times(ways: Iterable[Way], quantity: Quantity, exponent: int) -> frozenset[Way]:
    def one(way: Way) -> Way:
        powers = dict(way)
        powers[quantity] = powers.get(quantity, 0) + exponent
        return frozenset((q, power) for q, power in powers.items() if power)

    return frozenset(map(one, ways))
