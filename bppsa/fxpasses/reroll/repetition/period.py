"""Where a log repeats itself: ops are coloured by what they are, and the longest run of one period is found."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue, is_number

LEAST_STEPS = 8  # repetitions: an outer loop of fewer must not hide the loops within it
CANDIDATES = 32
LONGEST_WORD = 16


class PeriodicRun(NamedTuple):
    """ops[start:stop] repeats itself with this period."""

    start: int
    stop: int
    period: int


def colours(ops: Sequence[LoggedOp]) -> list[int]:
    """A number for each op, equal for ops that could be one op of two steps."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(colour(op), len(known)) for op in ops]


def colour(op: LoggedOp) -> Hashable:
    outs = tuple((value.shape, value.dtype) for value in op.outs)
    return op.target, op.spec, op.grad, outs, tuple(map(of_leaf, op.leaves))


def of_leaf(leaf: Any) -> Any:
    """Tensors that a call closes over tell layers apart; any other operand may come from before in a first step."""
    if isinstance(leaf, LoggedValue):
        return leaf if leaf.constant else (leaf.shape, leaf.dtype)
    return type(leaf) if is_number(leaf) else (type(leaf), leaf)


def longest(colours: Sequence[int], least: int = LEAST_STEPS) -> PeriodicRun | None:
    """The repetition that covers most ops; a longer period has to cover more than one of its periods in addition, so
    that the steps of an outer loop are found before those of an inner one, and no step is taken for two."""
    c = np.asarray(colours)
    best: PeriodicRun | None = None
    for period in candidates(c, least):
        start, stop = longest_equal(c[period:] == c[:-period], period)
        if stop - start < least * period:
            continue
        if best is None or stop - start > best.stop - best.start + period:
            best = PeriodicRun(start, stop, period)
    return best


def candidates(c: np.ndarray, least: int) -> list[int]:
    """Distances between neighbours of one colour, and between words of one spelling: what is rare in a period may be
    of the colour of something frequent, but not what stands around it."""
    found: set[int] = set()
    width = 1
    while width <= LONGEST_WORD and least * width <= len(c):
        found.update(distances(c, least))
        _, c = np.unique(np.stack((c[:-width], c[width:])), axis=1, return_inverse=True)
        c = c.reshape(-1)
        width *= 2
    return sorted(found)


def distances(c: np.ndarray, least: int) -> list[int]:
    """The distances that explain most ops, and the most frequent ones."""
    order = np.argsort(c, kind="stable")
    same = c[order][1:] == c[order][:-1]
    found, counts = np.unique((order[1:] - order[:-1])[same], return_counts=True)
    by_ops = found[np.argsort(-counts * found, kind="stable")][:CANDIDATES]
    by_count = found[np.argsort(-counts, kind="stable")][: CANDIDATES // 4]
    return [int(p) for p in (*by_ops, *by_count) if p * least <= len(c)]


def longest_equal(equal: np.ndarray, period: int) -> tuple[int, int]:
    """The ops covered by the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    best = int(np.argmax(stops - starts))
    return int(starts[best]), int(stops[best]) + period
