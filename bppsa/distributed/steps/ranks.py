"""Workers that are ranks of torch.distributed: this process is one of them, and holds the weights that it owns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bppsa.common.leaves import without_graph
from bppsa.common.stages import Stages
from bppsa.distributed.steps.agreement import check_replicas, checksums, signature
from bppsa.distributed.steps.exchange import Exchange, MessageNumbers, Owners, make_exchange
from bppsa.distributed.steps.member import Member, SweepChoice, WorkerCall, tensors_of
from bppsa.distributed.steps.plans import StepPlan
from bppsa.distributed.steps.reducing import Reducing
from bppsa.errors import ScheduleError
from bppsa.runtime.transport.group import GroupTransport
from bppsa.runtime.transport.mailbox import Alarm
from bppsa.runtime.worker.execute import JobError, run_all
from bppsa.runtime.worker.gradients import Sums
from bppsa.runtime.worker.pipeline import PipelineCall
from bppsa.runtime.worker.results import Outcome, Results, outcome
from bppsa.runtime.worker.shell import hollow, named_tensors
from bppsa.schedule.job_graph.spec import Job
from bppsa.schedule.programs.program import Action

T = TypeVar("T")


class Ranks:
    """stages: without their weights. model: with those Parameters and buffers that this rank owns."""

    def __init__(
        self,
        stages: Stages,
        model: nn.Module,
        owners: Owners,
        transport: GroupTransport,
        neighbours: int,
        asked: SweepChoice,
        steps: Iterator[int] | None = None,
    ) -> None:
        """steps: numbers, each larger than those before it."""
        self.asked, self.neighbours = asked, neighbours
        self.stages, self.owners, self.transport, self.model = stages, owners, transport, model
        self.rank, self.ranks = transport.rank, transport.size
        foreign = [s for s in range(len(stages)) if self.rank not in owners[s]]
        self.member = Member(self.rank, stages, model, neighbours, foreign, transport.device)
        self.exchanges: dict[StepPlan, Exchange] = {}
        self.steps = steps or count(1)
        self.ran_nothing = True
        self.finished = False  # whether all ranks have had what they need of this call

    def for_stages(self, stages: Stages) -> Ranks:
        return Ranks(
            without_weights(stages),
            self.model,
            self.owners,
            self.transport,
            self.neighbours,
            self.asked,
            self.steps,
        )

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the model, of every rank: what is raised within on one of them is raised on all. None ends it, and
        may leave, before all have come so far."""
        self.transport.begin(next(self.steps))
        self.finished = False
        with self.transport.telling("a call of the model"):
            yield
            if not self.finished:
                self.finish()

    def finish(self) -> None:
        self.transport.finish()
        self.finished = True

    def run(
        self, plan: StepPlan, call: PipelineCall, state: Sequence[Results] = ()
    ) -> tuple[Outcome, Sequence[Results]]:
        """state: what the forward gave, for a backward alone. Raises WorkerError on every rank where one fails."""
        exchange = self.exchange(plan)
        self.transport.sign(signature(plan, call, self.ran_nothing))
        if self.ran_nothing:
            check_replicas(self.all_gather(checksums(named_tensors(self.model))))
        results = state[0].going_on() if state else Results()
        sums = Sums(plan.batches(self.rank))
        reducing = Reducing(self.transport, self.rank, exchange.reductions, sums)
        threads = torch.get_num_threads()
        try:
            self.lend_out(exchange)
            run = WorkerCall(
                plan,
                call,
                results,
                sums,
                self.transport,
                Alarm(self.tell),
                reducing.ended,
                reducing.go_on,
                exchange.fetches,
                exchange.frees,
                self.asked,
            )
            lanes = self.member.lanes(run)
            if lanes:
                run_all([lane.run for lane in lanes], run.alarm)
            self.transport.doing("the sums of gradients")
            self.report(plan, exchange, results)
            grads = reducing.gradients()
            everyone = self.reports(plan, exchange, results)
            self.finish()
            self.ran_nothing = False  # not before: a step fails on all ranks, but not at the same place on each
        finally:
            torch.set_num_threads(threads)
        return outcome(everyone, grads), [results]

    def exchange(self, plan: StepPlan) -> Exchange:
        if plan not in self.exchanges:
            self.exchanges[plan] = make_exchange(plan, self.stages, self.owners)
        return self.exchanges[plan]

    def tell(self, failure: BaseException) -> None:
        """Every rank, of what failed here."""
        if isinstance(failure, JobError):
            self.transport.fail(f"job {failure.action}", failure.__cause__ or failure)
        else:
            self.transport.fail("a step", failure)

    def all_gather(self, value: T) -> Sequence[T]:
        told = self.transport.all_gather(value)
        return [told[rank] for rank in range(self.ranks)]

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with self.call():
            self.transport.sign({"the call": "full_state_dict"})
            return self.gathered(tensors)

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        numbers = MessageNumbers(0)
        found: dict[str, Tensor] = {}
        messages = [numbers.message("D", 0, i, j) for i in range(self.ranks) for j in range(self.ranks) if i != j]
        for message in messages:
            if message.source == self.rank:
                self.transport.send(message, dict(tensors))
        for message in messages:
            if message.target == self.rank:
                found.update(self.transport.receive(message))
        return {**found, **tensors}

    def first_owned(self, names: Iterable[str]) -> set[str]:
        stages_of: dict[str, list[int]] = {}
        for s, stage in enumerate(self.stages.stages):
            for name in stage.names.values():
                stages_of.setdefault(name, []).append(s)
        first = {name: min(owner for s in at for owner in self.owners[s]) for name, at in stages_of.items()}
        return {name for name in names if first.get(name, 0) == self.rank}

    def lend_out(self, exchange: Exchange) -> None:
        """Weights that others will want: sent when they do, as they are now."""
        lending = [message for message in exchange.fetches.values() if message.source == self.rank]
        own = named_tensors(self.model) if lending else {}
        for message in lending:
            tensors = tensors_of(self.stages.stages[message.item.number])
            self.transport.send(message, [sendable(name, own[name], like) for name, like in tensors.items()])

    def report(self, plan: StepPlan, exchange: Exchange, results: Results) -> None:
        """Reports to all others, which need it when they have their gradients."""
        mine = report(plan.timeline.jobs_of[self.rank], results)
        for message in exchange.reports.values():
            if message.source == self.rank:
                self.transport.send(message, mine)

    def reports(self, plan: StepPlan, exchange: Exchange, results: Results) -> list[Results]:
        """What each rank has to tell, by rank."""
        found = []
        for rank in range(self.ranks):
            if rank == self.rank:
                found.append(results)
            else:
                told = self.transport.receive(exchange.reports[rank, self.rank])
                found.append(reported(plan.timeline.jobs_of[rank], told))
        return found


def without_weights(stages: Stages) -> Stages:
    return replace(stages, stages=tuple(replace(stage, module=hollow(stage)) for stage in stages.stages))


def sendable(name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """like: what the ranks that receive it have memory for. Raises ScheduleError where the tensor is another."""
    if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
        raise ScheduleError(
            f"{name} was {like.dtype} {list(like.shape)} when the model was cut, is {tensor.dtype} "
            f"{list(tensor.shape)} now, and is sent to other ranks; convert the model before bppsa.compile"
        )
    sent: Tensor = without_graph(tensor)
    return sent


def report(jobs: Sequence[Job], results: Results) -> dict[str, Any]:
    return {
        "times": array("d", [time for job in jobs for time in results.times[Action(*job)]]),
        "peak": results.peak,
        "losses": results.losses,
        "metrics": results.metrics,
        "outputs": results.outputs,
        "arguments": results.arguments,
        "seen": {job: moments for job, moments in results.seen.items() if moments},
    }


def reported(jobs: Sequence[Job], told: Mapping[str, Any]) -> Results:
    results = Results()
    starts, ends = told["times"][::2], told["times"][1::2]
    results.times = dict(zip(map(Action._make, jobs), zip(starts, ends, strict=True), strict=True))
    results.peak = told["peak"]
    results.losses, results.metrics, results.outputs = told["losses"], told["metrics"], told["outputs"]
    results.arguments, results.seen = told["arguments"], told["seen"]
    return results
