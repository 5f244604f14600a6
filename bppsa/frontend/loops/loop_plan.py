"""The plan of one kind of call that has loops, and a run of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa.decisions import Decision
from bppsa.errors import Unsupported, first_line
from bppsa.frontend.loops.key import LoopCall
from bppsa.frontend.planning.decided import Runs
from bppsa.fxpasses.environment.state import StatePlace
from bppsa.fxpasses.reroll.log.numbers import Arithmetic
from bppsa.sparsity.rules.matrix_ops import LinAlgError

TENSOR = object()
TIMED = 3  # runs of a plan before a call of PyTorch's is compared with them
COMPARED = 2  # such calls
OF_A_STEP = 3  # times what a forward gains: a training step has a backward, of twice the work


@dataclass(eq=False)
class PlanTimes:
    """What a plan takes whose kind of call is slow to find, in seconds, the least of its runs: to be found, and to run.
    by_pytorch: what PyTorch takes, a call each."""

    runs: int = 0
    asked: float = math.inf
    ran: float = math.inf
    by_pytorch: list[float] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether the next call is to be compared."""
        return self.runs >= TIMED and len(self.by_pytorch) < COMPARED

    def add(self, asked: float, ran: float) -> None:
        self.runs, self.asked, self.ran = self.runs + 1, min(self.asked, asked), min(self.ran, ran)

    def gains(self, by_pytorch: float) -> bool | None:
        """Whether the plan gains more than it takes to find; None before enough calls tell."""
        self.by_pytorch.append(by_pytorch)
        if len(self.by_pytorch) < COMPARED:
            return None
        gain = min(self.by_pytorch) - self.ran
        return gain * (OF_A_STEP if torch.is_grad_enabled() else 1) >= self.asked


@dataclass(frozen=True)
class LoopPlan:
    """run: the program, of the tensors among the arguments and of those in the environment at `places`, literals and
    numbers: terms of the arithmetic, and their dtypes. others: what else the call returned than tensors, by leaf."""

    run: fx.GraphModule
    arguments: tuple[int, ...]
    places: tuple[int, ...]
    literals: tuple[Tensor, ...]
    numbers: tuple[tuple[int, torch.dtype], ...]
    arithmetic: Arithmetic
    values: tuple[float, ...]  # of followed numbers, in the call that it was made of
    spec: Any
    others: tuple[Any, ...]  # by leaf; `TENSOR` where one is
    left: tuple[Decision, ...]  # of repetitions that are no scans
    picks: bool  # whether it may refuse the numbers it is given: whole ones too large, matrices that are singular
    is_shared: bool  # whether its cells are those of other lengths
    state: tuple[StatePlace, ...] = ()  # whose values stand behind what the call returns
    counts: tuple[tuple[StatePlace, int], ...] = ()  # what a call adds to numbers that it does not read
    scans: tuple[Decision, ...] = ()
    draws: bool = False  # random numbers
    doubted: bool = False  # whether its numbers are not PyTorch's in float32, and are in float64
    truths: int = 0  # so many of its results, the last, are true where steps decide as they did when it was made
    runs: Runs = field(default_factory=Runs, compare=False)
    times: PlanTimes = field(default_factory=PlanTimes, compare=False)

    def tensors(self, call: LoopCall, numbers: Sequence[float]) -> list[Tensor]:
        given, held = call.tensors, call.environment.tensors
        tensors = [*(given[i] for i in self.arguments), *(held[i] for i in self.places), *self.literals]
        if self.numbers:
            values = self.arithmetic.values(numbers or self.values)
            tensors += [torch.tensor(values[term], dtype=dtype, device=call.device) for term, dtype in self.numbers]
        return tensors

    @property
    def is_for_any_numbers(self) -> bool:
        """Whether what it is given in the place of followed numbers may be others."""
        return self.arithmetic.is_all and not self.literals

    def result(self, call: LoopCall, numbers: Sequence[float] = ()) -> tuple[Any, Sequence[Any]]:
        """What the call returns, and the values of its state.

        Raises `Unsupported`, and has drawn no random number, where it refuses the numbers it is given; `Missed`
        where Python would have decided otherwise in some step than in the call that was logged. Nor has it where an op
        raises."""
        state = torch.get_rng_state() if self.picks or self.draws else None
        try:
            with errors_refused():
                results = self.run(*self.tensors(call, numbers))
            self.runs.count(not self.truths or all(map(bool, results[-self.truths :])))
        except (Unsupported, RuntimeError, IndexError):
            if state is not None:
                torch.set_rng_state(state)
            raise
        made = iter(results)
        both: tuple[Any, Sequence[Any]]
        both = pytree.tree_unflatten([next(made) if o is TENSOR else o for o in self.others], self.spec)
        return both


@contextmanager
def errors_refused() -> Iterator[None]:
    """Errors of numbers, as of the root of a negative one or of a singular matrix, are PyTorch's to raise."""
    try:
        yield
    except (LinAlgError, ArithmeticError) as error:
        raise Unsupported(first_line(error)) from error
