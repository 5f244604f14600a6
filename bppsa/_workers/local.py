"""Workers that are threads of this process, and share its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bppsa._workers.plans import Plan
from bppsa.runtime.worker.execute import Lane, run_all
from bppsa.runtime.worker.gradients import Sums
from bppsa.runtime.worker.mailbox import Alarm, Mailbox, Threads
from bppsa.runtime.worker.pipeline import Call, Pipeline
from bppsa.runtime.worker.results import Outcome, Results, outcome, total
from bppsa.runtime.worker.shell import Shell
from bppsa.schedule.messages import Step
from bppsa.stages import Stages


class Local:
    """weights: the model's Parameters and buffers by name."""

    def __init__(self, stages: Stages, weights: Mapping[str, Tensor]) -> None:
        self.stages = stages
        self.lent = {name: lent(tensor) for name, tensor in weights.items()}
        self.shells: dict[tuple[int, int, int], Shell] = {}  # by worker, lane and stage

    def run(self, plan: Plan, call: Call, state: Sequence[Results] = ()) -> tuple[Outcome, Sequence[Results]]:
        """state: what the forward gave, for a backward alone."""
        alarm = Alarm()
        transport, workers = Threads(alarm), range(len(plan.steps))
        results = state or [Results() for _ in workers]
        sums = [Sums(batches(lanes)) for lanes in plan.steps]
        lanes = []
        for worker in workers:
            mailbox, inside = Mailbox(alarm), partial(threads_each, len(workers))
            for at, steps in enumerate(plan.steps[worker]):
                shells = {step.action.stage: self.shell(worker, at, step.action.stage) for step in steps}
                work = Pipeline(self.stages, call, shells, results[worker], sums[worker])
                times = results[worker].times
                lanes.append(Lane(worker, steps, work, mailbox, transport, plan.readers[worker], inside, times))
        before = torch.get_num_threads()
        try:
            run_all([lane.run for lane in lanes if lane.steps], alarm)
        finally:
            torch.set_num_threads(before)
        return outcome(results, total(sums)), results

    def shell(self, worker: int, lane: int, stage: int) -> Shell:
        key = worker, lane, stage
        if key not in self.shells:
            self.shells[key] = Shell(self.stages.stages[stage])
        shell = self.shells[key]
        shell.lend(self.lent)
        shell.follow(self.stages.stages[stage].module)
        return shell


def lent(tensor: Tensor) -> Tensor:
    """A leaf of the same memory: what is computed with it leaves the model's own `.grad` alone."""
    return nn.Parameter(tensor.detach(), tensor.requires_grad) if isinstance(tensor, nn.Parameter) else tensor


def batches(lanes: Sequence[Sequence[Step]]) -> dict[int, list[int]]:
    """Of each stage, the micro-batches whose weight gradients these steps compute."""
    actions = [step.action for steps in lanes for step in steps]
    last = "W" if any(action.kind == "W" for action in actions) else "B"
    found: dict[int, list[int]] = {}
    for stage, batch, kind in actions:
        if kind == last:
            found.setdefault(stage, []).append(batch)
    return found


@contextmanager
def threads_each(workers: int) -> Iterator[None]:
    """The cores are shared out among the workers."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    yield
