"""What the jobs of a step leave behind: of one worker, and put together for all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from bppsa.decisions import Decision
from bppsa.runtime.worker.gradients import Grads
from bppsa.runtime.worker.norms import NormMoments
from bppsa.schedule.programs.program import Action

Times = dict[Action, tuple[float, float]]  # seconds, start and end


class Middle(NamedTuple):
    """Where the graph has what an op gives that reads weights, which is not held for that; and these, by the model's
    names."""

    made: GradientEdge
    weights: dict[str, Tensor]


class End(NamedTuple):
    """Where a backward of weights begins, and the gradients there."""

    made: Sequence[Tensor | GradientEdge]
    grads: list[Tensor]
    weights: dict[str, Tensor]


@dataclass
class SavedForward:
    """What a job F leaves for its B: leaves for what it read, and what it made."""

    leaves: list[list[Tensor | None]]  # of each value, its tensors; None where no gradient flows to
    made: list[list[Tensor]]  # of each value, its tensors
    weights: dict[str, Tensor]
    middles: list[Middle] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)  # of W, from B: each with the weights that it goes on to


class Results:
    """Takes what one worker finds; its lanes share it. peak: the most activations held at a time, of a stage and
    micro-batch each. arguments: by (micro-batch, argument), the gradients of the argument's tensors, summed over
    stages."""

    def __init__(self) -> None:
        self.losses: dict[int, Tensor] = {}
        self.metrics: dict[int, Any] = {}  # what the loss function gives beside the loss
        self.outputs: dict[int, tuple[Any, ...]] = {}
        self.arguments: dict[tuple[int, int], list[Tensor | None]] = {}
        self.seen: dict[tuple[int, int], list[NormMoments]] = {}  # by stage and micro-batch
        self.kept: dict[tuple[int, int], Any] = {}  # what forwards leave for backwards
        self.times: Times = {}
        self.decisions: list[Decision] = []  # of the recurrences that ran in this process
        self.held = self.peak = 0
        self.lock = threading.Lock()

    def going_on(self) -> Results:
        """The results of a backward, which follows the forward that left this."""
        following = Results()
        following.kept, following.held, following.peak = self.kept, self.held, self.peak
        return following

    def hold(self, change: int) -> None:
        with self.lock:
            self.held += change
            self.peak = max(self.peak, self.held)


@dataclass(frozen=True)
class Outcome:
    """What all workers found. grads: those of the weights that this process owns. workers: who ran a job. peaks: by
    worker."""

    losses: dict[int, Tensor]
    metrics: dict[int, Any]
    outputs: dict[int, tuple[Any, ...]]
    arguments: dict[tuple[int, int], list[Tensor | None]]
    seen: dict[tuple[int, int], list[NormMoments]]
    times: Times
    workers: dict[Action, int]
    peaks: list[int]
    grads: Grads
    decisions: list[Decision]


def outcome(workers: Sequence[Results], grads: Grads) -> Outcome:
    """Puts together what workers found, in their order, so that every process has the same sums."""
    arguments: dict[tuple[int, int], list[Tensor | None]] = {}
    for results in workers:
        for key, of_worker in results.arguments.items():
            arguments[key] = added(arguments.get(key), of_worker)
    return Outcome(
        {b: loss for results in workers for b, loss in results.losses.items()},
        {b: metrics for results in workers for b, metrics in results.metrics.items()},
        {b: made for results in workers for b, made in results.outputs.items()},
        arguments,
        {key: seen for results in workers for key, seen in results.seen.items()},
        {job: time for results in workers for job, time in results.times.items()},
        {job: worker for worker, results in enumerate(workers) for job in results.times},
        [results.peak for results in workers],
        grads,
        [decision for results in workers for decision in results.decisions],
    )


def added(a: Sequence[Tensor | None] | None, b: Sequence[Tensor | None]) -> list[Tensor | None]:
    if a is None:
        return list(b)
    return [y if x is None else x if y is None else x + y for x, y in zip(a, b, strict=True)]
