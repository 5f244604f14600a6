"""Workers that are threads of this process, and share its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from bppsa.common.stages import Stages
from bppsa.distributed.steps.member import Member, SweepChoice, WorkerCall
from bppsa.distributed.steps.plans import StepPlan
from bppsa.runtime.transport.mailbox import Alarm, Threads
from bppsa.runtime.worker.execute import run_all
from bppsa.runtime.worker.gradients import Sums, total
from bppsa.runtime.worker.pipeline import PipelineCall
from bppsa.runtime.worker.results import Outcome, Results, outcome

T = TypeVar("T")


def nothing(*of: object) -> None: ...


class Local:
    rank, ranks = 0, 1

    def __init__(self, stages: Stages, model: nn.Module, asked: SweepChoice) -> None:
        self.stages, self.model, self.asked = stages, model, asked
        self.members: dict[int, Member] = {}

    def for_stages(self, stages: Stages) -> Local:
        return Local(stages, self.model, self.asked)

    def call(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run(
        self, plan: StepPlan, call: PipelineCall, state: Sequence[Results] = ()
    ) -> tuple[Outcome, Sequence[Results]]:
        """state: what the forward gave, for a backward alone."""
        alarm, count = Alarm(), plan.timeline.W
        transport = Threads(alarm)
        results = [before.going_on() for before in state] or [Results() for _ in range(count)]
        sums = [Sums(plan.batches(worker)) for worker in range(count)]
        lanes = []
        for worker in range(count):
            run = WorkerCall(
                plan, call, results[worker], sums[worker], transport, alarm, nothing, nothing, {}, (), self.asked
            )
            lanes += self.member(worker, count).lanes(run)
        threads = torch.get_num_threads()
        try:
            run_all([lane.run for lane in lanes], alarm)
        finally:
            torch.set_num_threads(threads)
        return outcome(results, total(map(Sums.whole, sums))), results

    def member(self, worker: int, count: int) -> Member:
        if worker not in self.members:
            self.members[worker] = Member(worker, self.stages, self.model, count)
        return self.members[worker]

    def all_gather(self, value: T) -> Sequence[T]:
        return [value]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def first_owned(self, names: Iterable[str]) -> set[str]:
        return set(names)
