"""Which strategy and which forward run a recurrence, and why: what is predicted to take least, where that is sure
enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bppsa.plan import work
from bppsa.plan.cost import Machine
from bppsa.plan.forward import LIBRARY, NEWTON, SEQUENTIAL, Forward, division
from bppsa.plan.levels import complexity
from bppsa.plan.strategy import NAMES, Strategy, divide, strategy_of
from bppsa.plan.work import LOOP, PYTORCH, Counts, Size

Numbers = dict[str, float | int | str]
INLINE_ROWS = 8
MOST_UNSURE = 1.1  # on a CPU: predictions for one step were off by up to 1.6 times
SURE = 1.25  # times as fast as one sweep a scan, or a forward by Newton's iteration, has to be predicted

WHAT = {NEWTON: "Newton's iteration", LIBRARY: "PyTorch's own"}
# What auto chooses from. A CPU combines pairs by torch's ops, some 0.3 ms a step of the scan: no sweep takes as long.
OPEN = {"cpu": ("sequential",), "cuda": ("sequential", "chunked")}


def multiply_inline(rows: int, device: str) -> bool:
    """Whether a forward sweep multiplies x with its weight itself. That saves writing and reading the product, but each
    step reads the weight again: too much work for few rows, and on a GPU a step that all others wait for."""
    # where Dynamo takes the rows for a variable, bool() makes a guard here
    return device == "cpu" and bool(rows >= INLINE_ROWS)


@dataclass(frozen=True)
class Choice:
    """A strategy and a forward for one call, why, and the numbers that decided."""

    strategy: str  # the text of one that runs, or "pytorch" to leave the call as it was
    reason: str
    numbers: Numbers
    predicted: Mapping[str, float] = field(default_factory=dict)  # milliseconds by strategy, where they were asked for
    machine: str = ""  # whose rates
    forward: str = str(SEQUENTIAL)  # the text of one
    kept_every: int | None = None  # steps between two states that are kept for the backward; None where all are

    def keeping(self, length: int | None, steps: int) -> Choice:
        """The choice with every `length`-th state kept, where one sweep after the other runs in the order of steps."""
        if length is None or self.strategy == PYTORCH or self.forward != str(SEQUENTIAL):
            return self
        if divide(strategy_of(self.strategy), steps).count > 1:
            return self
        return replace(self, kept_every=length, numbers=self.numbers | {"states kept": f"every {length}th"})

    @property
    def told(self) -> tuple[Mapping[str, float], str, str]:
        """What a Decision shows besides: the predictions, whose they are, and the forward."""
        return self.predicted, self.machine if self.predicted else "", self.forward


@dataclass(frozen=True)
class PlannedCall:
    """What is chosen for. layers: the counts of every layer and direction. library: whether PyTorch has a kernel for
    a whole forward."""

    layers: Sequence[Counts]
    size: Size
    training: bool
    machine: Machine
    library: bool = False

    @property
    def margin(self) -> float:
        """How many times faster than PyTorch a rewrite has to be predicted. Predictions are least sure for the shortest
        calls; but what Python loops over is told to be fused, so there it is the loop that has to be sure."""
        if self.layers[0].peer == LOOP:
            return 1 / SURE
        unsure = (self.machine.short / max(self.size.steps, 1)) ** 2
        return self.machine.margin + (min(unsure, MOST_UNSURE) if self.machine.device == "cpu" else unsure)

    def ms(self, strategy: Strategy | str, forward: Forward = SEQUENTIAL) -> float:
        """Predicted; of PyTorch by "pytorch"."""
        works = (work.phases(strategy, counts, self.size, self.training, forward) for counts in self.layers)
        return sum(map(self.machine.us, works)) / 1e3

    def forward_ms(self, forward: Forward) -> float:
        """The milliseconds of ours, without a backward."""
        one = Strategy("sequential")
        works = (work.forward(one, counts, self.size, self.training, forward) for counts in self.layers)
        return sum(map(self.machine.us, works)) / 1e3

    def parallel(self, *, iterate: bool = True) -> dict[Forward, float]:
        """The other forwards than one sweep that can run, and how many times as fast each has to be predicted.
        iterate: with those of which nobody knows whether they converge."""
        exact = all(counts.iterations == 1 for counts in self.layers)
        found = {}
        if (exact or iterate) and division(NEWTON, self.size.steps).count > 1:
            found[NEWTON] = 1.0 if exact else SURE
        if self.library and self.training:
            found[LIBRARY] = 1.0
        return found

    def all_ms(self) -> dict[str, float]:
        """The milliseconds of PyTorch, of each strategy as it is by default, and of the other forwards beside the
        strategy that suits them. Without gradients all are the one sweep forward."""
        names = [name for name in NAMES if name != "auto"] if self.training else ["sequential"]
        found = {PYTORCH: self.ms(PYTORCH)} | {name: self.ms(Strategy(name)) for name in names}
        beside = OPEN[self.machine.device][-1]
        for forward in self.parallel():
            found[f"{forward} + {beside}" if self.training else str(forward)] = self.ms(Strategy(beside), forward)
        return found


def choose(
    asked: Strategy, call: PlannedCall, numbers: Numbers, *, ahead: Forward = SEQUENTIAL, explained: bool = False
) -> Choice:
    """numbers: what a report shows of the call's sizes. ahead: the forward that is asked for. explained: with
    predictions for what was not in question."""
    predicted = call.all_ms() if explained else {}
    forward, why = choose_forward(ahead, call)
    if asked.name != "auto":
        choice = as_asked(asked, call.size.steps, call.training, numbers)
    elif forward.name == ahead.name == "newton":  # PyTorch has no such forward to leave the call to
        choice = Choice(fastest(call, forward)[0], "fits the forward", numbers)
    elif not all(counts.fits for counts in call.layers) and call.layers[0].peer != LOOP:
        choice = Choice(PYTORCH, "the weights are more than a program of the GPU keeps: each step would wait", numbers)
    else:
        choice = least(call, forward, numbers)
    if choice.strategy == PYTORCH and forward != SEQUENTIAL:  # for all it gains, PyTorch is faster
        forward, why = SEQUENTIAL, ""
    if why:
        choice = replace(choice, reason=f"{choice.reason}; forward {forward}: {why}")
    return replace(choice, predicted=predicted, machine=str(call.machine), forward=str(forward))


def choose_forward(asked: Forward, call: PlannedCall) -> tuple[Forward, str]:
    """Which forward runs a call that PyTorch does not, and why; "" where nobody asked."""
    steps = call.size.steps
    if asked.name == "newton" and division(asked, steps).count == 1:
        return SEQUENTIAL, f"{steps} steps are a single chunk"
    if asked.name == "pytorch" and call.layers[0].peer == LOOP:
        return SEQUENTIAL, "PyTorch has no kernel for a cell"
    if asked.name != "auto":
        return asked, "as asked" if asked != SEQUENTIAL else ""
    if call.machine.device == "cpu":  # too few cores for the work of a parallel one, and no library beats our sweep
        return SEQUENTIAL, ""
    one, chosen, gain = call.forward_ms(SEQUENTIAL), SEQUENTIAL, 1.0
    for forward, margin in call.parallel(iterate=asked.iterations > 0).items():
        faster = one / call.forward_ms(forward)
        if faster > max(gain, margin):
            chosen, gain = forward, faster
    return chosen, "" if chosen == SEQUENTIAL else f"{WHAT[chosen]} predicted {gain:.2g} times as fast as one sweep"


def fastest(call: PlannedCall, forward: Forward) -> tuple[str, float]:
    """The fastest of the strategies open on the device: its name, and the milliseconds with this forward."""
    name, *others = OPEN[call.machine.device]
    ours = call.ms(Strategy(name), forward)
    for other in others if call.training else ():
        ms = call.ms(Strategy(other), forward)
        if ms * SURE < ours:
            name, ours = other, ms
    return name, ours


def least(call: PlannedCall, forward: Forward, numbers: Numbers) -> Choice:
    """The fastest of ours, or PyTorch."""
    theirs, (name, ours) = call.ms(PYTORCH), fastest(call, forward)
    gain, what = theirs / ours, "forward and backward" if call.training else "forward"
    numbers = numbers | {"predicted ms": round(ours, 3), "PyTorch's": round(theirs, 3)}
    if gain < call.margin:
        sure = ", too little to be sure of" if gain > 1 else ""
        reason = f"{what} predicted {gain:.2f} times as fast as PyTorch's{sure}"
        return Choice(PYTORCH, reason, numbers)
    return Choice(name, f"{what} predicted {gain:.1f} times as fast as PyTorch's", numbers)


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
