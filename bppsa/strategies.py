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
    """Return what the cost model predicts to be fastest; where that is PyTorch, PyTorch runs."""
    return Strategy("auto")


def sequential() -> Strategy:
    """Return one fused sweep over all steps: the paper's linear scan, which is back-propagation itself."""
    return Strategy("sequential")


def chunked(length: int | None = None) -> Strategy:
    """Return three phases: reduce each chunk to one pair, scan over the chunks, sweep each chunk.

    Args:
        length: steps a chunk, at least 1; by default near sqrt(T) / 2.

    Raises:
        StrategyError: a length below 1 (a ValueError).
    """
    return Strategy("chunked", length=length)


def blelloch() -> Strategy:
    """Return the modified Blelloch scan over single steps (BPPSA Algorithm 1).

    Its depth is logarithmic, and nearly every step takes a product of two matrices.
    """
    return Strategy("blelloch")


def hybrid(up_levels: int | None = None) -> Strategy:
    """Return some levels of Blelloch's tree, and a linear scan over what they leave (BPPSA section 5.3).

    Args:
        up_levels: how many levels go up; by default half of the tree.

    Raises:
        StrategyError: a negative number (a ValueError).
    """
    return Strategy("hybrid", up_levels=up_levels)


def newton(
    length: int | None = None,
    iterations: int = MOST_ITERATIONS,
    tolerance: float | None = None,
    jacobian: str = "full",
    warm_start: bool = False,
) -> Forward:
    """Return a forward that finds the states of all steps at once, by Newton's iteration over chunks (DEER, ParaRNN).

    What does not converge runs step by step, and the report counts it.

    Args:
        length: steps a chunk, by default near sqrt(T) / 2.
        iterations: at most so many.
        tolerance: of the residual at the chunks' borders, relative to the states' largest number; by default a few
            units of rounding.
        jacobian: "full", or "diagonal", which leaves all of a recurrent product but its weight's diagonal out of J
            (quasi-Newton: less work an iteration, more iterations).
        warm_start: begins with the carries of the last call of the same shape.

    Raises:
        StrategyError: a value that an option cannot have (a ValueError).
    """
    return Forward("newton", length, iterations, tolerance, jacobian, warm_start)
