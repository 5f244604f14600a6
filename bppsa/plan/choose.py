"""Which strategy runs a recurrence, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bppsa.plan.cost import Machine, Size, pytorch_ms, sequential_ms

STRATEGIES = ("auto", "sequential")
INLINE_ROWS = 8
MARGIN = 1.0  # a rewrite has to be predicted this many times faster


def multiply_inline(rows: int) -> bool:
    """Whether a forward sweep multiplies x with its weight itself. That saves writing and reading the product, but each
    step reads the weight again: too much work for few rows."""
    return rows >= INLINE_ROWS


@dataclass(frozen=True)
class Choice:
    strategy: str  # "sequential", or "pytorch" to leave the call as it was
    reason: str
    numbers: Mapping[str, float | int | str]


def choose(strategy: str, layers: tuple[Size, ...], ops: int, machine: Machine, threads: int) -> Choice:
    """`layers`: the size of every layer and direction; `ops`: what PyTorch dispatches in a step, 0 where it fuses them."""
    ours = sum(sequential_ms(size, machine, threads) for size in layers)
    theirs = sum(pytorch_ms(size, machine, threads, ops) for size in layers)
    first = layers[0]
    numbers = {
        "T": first.steps,
        "B": first.rows,
        "H": first.hidden,
        "sequential ms": round(ours, 3),
        "pytorch ms": round(theirs, 3),
    }
    if strategy == "sequential":
        return Choice("sequential", "as asked", numbers)
    if theirs < MARGIN * ours:
        return Choice("pytorch", f"its own forward is predicted {ours / theirs:.2f} times as fast", numbers)
    return Choice("sequential", f"predicted {theirs / ours:.1f} times as fast as PyTorch's own forward", numbers)
