"""Which states a forward keeps for its backward: all of them, or every k-th, from which the backward computes the
others again, k steps at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGE = 8 << 20  # bytes of states that are kept all, whatever the cell: they stay in a shared cache
HELD = 1 << 20  # bytes of a thread's steps that are computed again, so that its own cache holds them
LEAST = 4  # steps between two states that are kept; fewer would save too little
DOMINANT = 2  # times as wide as what a step reads must be the states that need not be kept
PRODUCTS = 16  # multiplications with weights in a step, for each number of a state, that are worth no memory


@dataclass(frozen=True)
class StateSizes:
    """What a step of one row has. states: bytes of those that no output shows and no product after the sweep reads;
    held: bytes that a backward needs of a step computed again; read: bytes of the step's inputs; products:
    multiplications with weights for each number of all states."""

    states: int
    held: int
    read: int
    products: float


def steps_between(sizes: StateSizes, steps: int, rows: int) -> int | None:
    """How many steps are between two states that are kept; None where all are."""
    if sizes.states * steps * rows <= LARGE or sizes.states < DOMINANT * sizes.read or sizes.products > PRODUCTS:
        return None
    length = max(LEAST, min(math.ceil(math.sqrt(steps)), HELD // sizes.held))
    return length if length <= steps // 2 else None
