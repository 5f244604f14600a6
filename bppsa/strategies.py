"""Strategies with options, for `bppsa.compile(model, strategy=..., forward=...)`. Nobody has to choose: the default of
`strategy` is "auto".

Each says in which order the backward's pairs (J^T, b) are combined; all give the same gradients. `newton` is of the
forward.
"""

from __future__ import annotations

from bppsa.plan.forward import MOST_ITERATIONS, Forward
from bppsa.plan.strategy import Strategy

__all__ = ["auto", "blelloch", "chunked", "hybrid", "newton", "sequential"]


def auto() -> Strategy:
    """What the cost model predicts to be fastest; where that is PyTorch, PyTorch runs."""
    return Strategy("auto")


def sequential() -> Strategy:
    """One fused sweep over all steps: the paper's linear scan, which is back-propagation itself."""
    return Strategy("sequential")


def chunked(length: int | None = None) -> Strategy:
    """Three phases: reduce each chunk of `length` steps to one pair, scan over the chunks, sweep each chunk.

    length: steps a chunk, at least 1; by default near sqrt(T) / 2. Raises StrategyError, a ValueError.
    """
    return Strategy("chunked", length=length)


def blelloch() -> Strategy:
    """The modified Blelloch scan over single steps (BPPSA Algorithm 1): logarithmic depth, and a product
    of two matrices for nearly every step."""
    return Strategy("blelloch")


def hybrid(up_levels: int | None = None) -> Strategy:
    """`up_levels` levels of Blelloch's tree, a linear scan over what they leave, the matching levels down (BPPSA
    section 5.3); by default half of the tree. Raises StrategyError, a ValueError."""
    return Strategy("hybrid", up_levels=up_levels)


def newton(
    length: int | None = None,
    iterations: int = MOST_ITERATIONS,
    tolerance: float | None = None,
    jacobian: str = "full",
    warm_start: bool = False,
) -> Forward:
    """For `forward`: the states of all steps at once, by Newton's iteration over chunks (DEER, ParaRNN).

    length: steps a chunk, by default near sqrt(T) / 2; iterations: at most so many; tolerance: of the residual at the
    chunks' borders, relative to the states' largest number, by default a few units of rounding. What does not converge
    to it runs step by step, and the report counts it. jacobian: "full", or "diagonal", which leaves all of a recurrent
    product but its weight's diagonal out of J (quasi-Newton: less work an iteration, more iterations). warm_start:
    begin with the carries of the last call of the same shape. Raises StrategyError, a ValueError.
    """
    return Forward("newton", length, iterations, tolerance, jacobian, warm_start)
