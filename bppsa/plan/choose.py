"""Which strategy runs a recurrence, and why: the one predicted to take least, where that is sure enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bppsa.plan.cost import Machine
from bppsa.plan.levels import complexity
from bppsa.plan.strategy import NAMES, Strategy, divide
from bppsa.plan.work import LOOP, PYTORCH, Counts, Size, phases

Numbers = dict[str, float | int | str]
INLINE_ROWS = 8
FEWEST = 2  # steps; a call of no more is over before a prediction is worth anything
SURE = 1.25  # times as fast as one sweep a scan has to be predicted

# What auto chooses from. A CPU combines pairs by torch's ops, some 0.3 ms a step of the scan: no sweep takes as long.
OPEN = {"cpu": ("sequential",), "cuda": ("sequential", "chunked")}


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
    predicted: Mapping[str, float] = field(default_factory=dict)  # milliseconds by strategy, where they were asked for
    machine: str = ""  # whose rates

    @property
    def told(self) -> tuple[Mapping[str, float], str]:
        """What a Decision shows of the predictions."""
        return self.predicted, self.machine if self.predicted else ""


@dataclass(frozen=True)
class Call:
    """What is chosen for. layers: the counts of every layer and direction."""

    layers: Sequence[Counts]
    size: Size
    training: bool
    machine: Machine

    @property
    def margin(self) -> float:
        """How many times faster than PyTorch a rewrite has to be predicted. Predictions are least sure for the shortest
        calls; but what Python loops over is told to be fused, so there it is the loop that has to be sure."""
        if self.layers[0].peer == LOOP:
            return 1 / SURE
        return self.machine.margin + (7 / max(self.size.steps, 1)) ** 2

    def ms(self, strategy: Strategy | str) -> float:
        """Predicted; of PyTorch by "pytorch"."""
        works = (phases(strategy, counts, self.size, self.training) for counts in self.layers)
        return sum(map(self.machine.us, works)) / 1e3

    def all_ms(self) -> dict[str, float]:
        """Of PyTorch, and of each strategy as it is by default. Without gradients all are the one sweep forward."""
        names = [name for name in NAMES if name != "auto"] if self.training else ["sequential"]
        return {PYTORCH: self.ms(PYTORCH)} | {name: self.ms(Strategy(name)) for name in names}


def choose(asked: Strategy, call: Call, numbers: Numbers, *, explained: bool = False) -> Choice:
    """numbers: what a report shows of the call's sizes. explained: with predictions for what was not in question."""
    predicted = call.all_ms() if explained else {}
    if asked.name != "auto":
        choice = as_asked(asked, call.size.steps, call.training, numbers)
    elif is_too_short(asked, call.size.steps) and call.layers[0].peer != LOOP:
        choice = too_short(numbers)
    else:
        choice = least(call, numbers)
    return Choice(choice.strategy, choice.reason, choice.numbers, predicted, str(call.machine))


def least(call: Call, numbers: Numbers) -> Choice:
    """Of those open on the device."""
    theirs, (name, *others) = call.ms(PYTORCH), OPEN[call.machine.device]
    ours = call.ms(Strategy(name))
    for other in others if call.training else ():
        ms = call.ms(Strategy(other))
        if ms * SURE < ours:
            name, ours = other, ms
    gain, what = theirs / ours, "forward and backward" if call.training else "forward"
    numbers = numbers | {"predicted ms": round(ours, 3), "PyTorch's": round(theirs, 3)}
    if gain < call.margin:
        sure = ", too little to be sure of" if gain > 1 else ""
        reason = f"{what} predicted {gain:.2f} times as fast as PyTorch's{sure}"
        return Choice(PYTORCH, reason, numbers)
    return Choice(name, f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)


def is_too_short(asked: Strategy, steps: int) -> bool:
    """For a module: whether PyTorch runs a call whatever is predicted, so that nothing need be counted for it."""
    return asked.name == "auto" and steps <= FEWEST


def too_short(numbers: Numbers) -> Choice:
    """What `is_too_short` says is chosen."""
    return Choice(PYTORCH, "so few steps are over before a sweep could gain", numbers)


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
