"""A grid of shapes at none of which PyTorch may be faster."""

from __future__ import annotations

import bppsa
from harness.comparison import Options, Row, compare, strategy
from rows.problems import KINDS, Problem, Shape

LEAST_RATIO = 0.97
LONGEST_STEP_S = 0.6


def lines(options: Options) -> list[tuple[str, int, int]]:
    """Each case is one line of the grid, all T of it."""
    if options.quick:
        return [("RNN", 2, 4)]
    return [(kind, B, H) for kind in KINDS for B in (1, 4, 16, 64) for H in (8, 32, 128, 512)]


def measure(line: tuple[str, int, int], options: Options) -> list[Row]:
    kind, B, H = line
    rows: list[Row] = []
    for T in (1, 3) if options.quick else (1, 10, 100, 1000):
        shape = Shape(kind, T, B, H)
        if rows and rows[-1]["peer_ms"] * T / rows[-1]["T"] > 1e3 * LONGEST_STEP_S:
            break
        problem = Problem.of(shape)
        fast = bppsa.compile(problem.module)
        row = shape.row() | compare(problem.training(problem.module), problem.training(fast), options.repeats)
        spread = row["ratio"]
        lost = spread["median"] < LEAST_RATIO - (spread["high"] - spread["low"])
        rows.append(row | {"strategy": strategy(fast), "lost": lost})
    return rows
