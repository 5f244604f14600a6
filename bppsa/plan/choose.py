"""Which strategy runs a recurrence, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bppsa.plan.cost import Machine, Size

STRATEGIES = ("auto", "sequential")
INLINE_ROWS = 8


def margin(steps: int) -> float:
    """How many times faster a rewrite has to be predicted: predictions are least sure for the shortest calls."""
    return 1.02 + (7 / max(steps, 1)) ** 2


def multiply_inline(rows: int) -> bool:
    """Whether a forward sweep multiplies x with its weight itself. That saves writing and reading the product, but each
    step reads the weight again: too much work for few rows."""
    return bool(rows >= INLINE_ROWS)  # where Dynamo takes the rows for a variable it makes a guard here


@dataclass(frozen=True)
class Choice:
    """A strategy for one call, why, and the numbers that decided."""

    strategy: str  # "sequential", or "pytorch" to leave the call as it was
    reason: str
    numbers: Mapping[str, float | int | str]


def choose(strategy: str, layers: Sequence[Size], peer: str, training: bool, machine: Machine) -> Choice:
    """`layers`: the size of every layer and direction; `peer`: whose rates are PyTorch's."""
    ours = machine.sequential[layers[0].gates][training].us(layers) / 1e3
    theirs = machine.pytorch[peer][training].us(layers) / 1e3
    size = layers[0]
    numbers: dict[str, float | int | str] = {"T": size.steps, "B": size.rows, "H": size.hidden}
    numbers |= {"sequential ms": round(ours, 3), "pytorch ms": round(theirs, 3)}
    if strategy == "sequential":
        return Choice("sequential", "as asked", numbers)
    gain, what = theirs / ours, "forward and backward" if training else "forward"
    if gain < margin(size.steps):
        reason = f"{what} predicted {gain:.2f} times as fast as PyTorch's, too little to be sure of"
        return Choice("pytorch", reason, numbers)
    return Choice("sequential", f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)
