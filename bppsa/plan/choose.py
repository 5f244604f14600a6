"""Which strategy runs a recurrence, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.plan.cost import Machine, Size
from bppsa.plan.levels import complexity
from bppsa.plan.strategy import Strategy, divide

Numbers = dict[str, float | int | str]
INLINE_ROWS = 8


def margin(steps: int) -> float:
    """How many times faster a rewrite has to be predicted: predictions are least sure for the shortest calls."""
    return 1.02 + (7 / max(steps, 1)) ** 2


def multiply_inline(rows: int, device: str) -> bool:
    """Whether a forward sweep multiplies x with its weight itself. That saves writing and reading the product, but each
    step reads the weight again: too much work for few rows, and on a GPU a step that all others wait for."""
    return device == "cpu" and bool(
        rows >= INLINE_ROWS
    )  # where Dynamo takes the rows for a variable it makes a guard here


@dataclass(frozen=True)
class Choice:
    """A strategy for one call, why, and the numbers that decided."""

    strategy: str  # the text of one that runs, or "pytorch" to leave the call as it was
    reason: str
    numbers: Numbers


def choose(strategy: Strategy, layers: Sequence[Size], peer: str, training: bool, machine: Machine) -> Choice:
    """`layers`: the size of every layer and direction; `peer`: whose rates are PyTorch's."""
    ours = machine.sequential[layers[0].gates][training].us(layers) / 1e3
    theirs = machine.pytorch[peer][training].us(layers) / 1e3
    size = layers[0]
    numbers: Numbers = {"T": size.steps, "B": size.rows, "H": size.hidden}
    if strategy.name not in ("auto", "sequential"):
        return as_asked(strategy, size.steps, training, numbers)
    numbers |= {"predicted ms": round(ours, 3), "PyTorch's": round(theirs, 3)}
    if strategy.name == "sequential":
        return Choice("sequential", "as asked", numbers)
    gain, what = theirs / ours, "forward and backward" if training else "forward"
    if gain < margin(size.steps):
        reason = f"{what} predicted {gain:.2f} times as fast as PyTorch's, too little to be sure of"
        return Choice("pytorch", reason, numbers)
    return Choice("sequential", f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)


def choose_on_gpu(strategy: Strategy, size: Size, training: bool) -> Choice:
    """For nn.RNN, nn.GRU and nn.LSTM, whose alternative is cuDNN's fused kernel."""
    numbers: Numbers = {"T": size.steps, "B": size.rows, "H": size.hidden}
    if strategy.name == "auto":
        return Choice("pytorch", "on a GPU cuDNN runs it, unless another strategy is asked for", numbers)
    return as_asked(strategy, size.steps, training, numbers)


def choose_scan(strategy: Strategy, steps: int, training: bool, numbers: Numbers) -> Choice:
    """For a cell of the user's own, whose alternative is a loop in Python."""
    if strategy.name == "auto":
        return Choice("sequential", "one fused kernel forward, one backward", numbers)
    return as_asked(strategy, steps, training, numbers)


def as_asked(strategy: Strategy, steps: int, training: bool, numbers: Numbers) -> Choice:
    """What an explicit strategy comes to for so many steps."""
    division = divide(strategy, steps)
    if strategy.name == "sequential":
        return Choice("sequential", "as asked", numbers)
    if not training:
        return Choice("sequential", f"{strategy} as asked, but without gradients there is only the forward", numbers)
    if division.count == 1:
        return Choice("sequential", f"{strategy} as asked, but {steps} steps are a single chunk", numbers)
    size = complexity(division.scan)
    numbers = numbers | {"chunks": division.count, "chunk length": division.length}
    return Choice(str(strategy), "as asked", numbers | {"scan steps": size.steps, "scan work": size.work})
