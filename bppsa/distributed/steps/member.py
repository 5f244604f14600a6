"""One worker in this process: its copies of the stages that it runs, and its lanes for a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bppsa.common.graph import modules_in
from bppsa.common.stages import OverTime, Stage, Stages
from bppsa.decisions import Decision
from bppsa.distributed.steps.plans import StepPlan
from bppsa.errors import ScheduleError
from bppsa.frontend.call_log import pop, push
from bppsa.frontend.rnn.recurrent import sweep_of
from bppsa.plan.forward import Forward
from bppsa.plan.strategy import Strategy
from bppsa.runtime.transport.borders import JobWork, Transport
from bppsa.runtime.transport.mailbox import Alarm, Mailbox
from bppsa.runtime.worker.execute import Lane
from bppsa.runtime.worker.fetched import Fetched
from bppsa.runtime.worker.gradients import Sums
from bppsa.runtime.worker.over_time.work import TimeChunks
from bppsa.runtime.worker.pipeline import Pipeline, PipelineCall
from bppsa.runtime.worker.results import Results
from bppsa.runtime.worker.shell import Shell, named_tensors, tensors_of_modules
from bppsa.schedule.programs.messages import Message
from bppsa.schedule.programs.program import Action

SweepChoice = tuple[Strategy, Forward]  # by the user, for scans and recurrences


@dataclass(frozen=True)
class WorkerCall:
    """One call, as one worker has part in it. ended: called with a stage when its gradients are summed."""

    plan: StepPlan
    call: PipelineCall
    results: Results
    sums: Sums
    transport: Transport
    alarm: Alarm
    ended: Callable[[int], None]
    between: Callable[[], None]
    fetches: Mapping[Action, Message]
    frees: Collection[Action]
    asked: SweepChoice


class Member:
    """model: whose weights and buffers, as far as they are here, it is lent, and which it follows in training and
    evaluating. neighbours: how many workers share the machine. foreign: stages whose weights are fetched, to
    `device`."""

    def __init__(
        self,
        worker: int,
        stages: Stages,
        model: nn.Module,
        neighbours: int,
        foreign: Collection[int] = (),
        device: torch.device | None = None,
    ) -> None:
        self.worker, self.stages, self.model = worker, stages, model
        self.neighbours, self.foreign, self.device = neighbours, foreign, device
        own = named_tensors(model)
        self.names, self.lent = first_names(own), {name: lent(tensor) for name, tensor in own.items()}
        self.shells: dict[tuple[int, int], Shell] = {}  # by lane and stage
        self.fetched: dict[tuple[int, int], Fetched] = {}

    def lanes(self, run: WorkerCall) -> list[Lane]:
        """The lanes that have something to do."""
        modules = modules_in(self.model)
        self.follow(tensors_of_modules(modules))
        mailbox, found = Mailbox(run.alarm), []
        program = run.plan.program(self.worker)
        threads = self.neighbours * sum(map(bool, program.lanes))
        for lane, steps in enumerate(program.lanes):
            used = sorted({step.action.stage for step in steps})
            work = work_of(
                self.stages,
                run.call,
                {s: self.shell(lane, s, run.call, modules) for s in used},
                run.results,
                run.sums,
                run.ended,
            )
            found.append(
                Lane(
                    self.worker,
                    steps,
                    work,
                    mailbox,
                    run.transport,
                    program.readers,
                    partial(inside, threads, run.results.decisions, run.asked),
                    run.results.times,
                    run.fetches,
                    run.frees,
                    {s: self.fetched[lane, s] for s in used if (lane, s) in self.fetched},
                    run.between,
                )
            )
        return [lane for lane in found if lane.steps]

    def follow(self, own: Mapping[str, Tensor]) -> None:
        """Weights that were moved, converted, replaced or frozen since. own: those of the model, by their names."""
        check_names(first_names(own), self.names)
        moved = [name for name, tensor in own.items() if not same_memory(tensor, self.lent[name])]
        self.lent.update({name: lent(own[name]) for name in moved})
        for name, tensor in own.items():
            if self.lent[name].requires_grad != tensor.requires_grad:
                self.lent[name].requires_grad_(tensor.requires_grad)
        if moved:
            for key in self.shells.keys() - self.fetched.keys():
                self.shells[key].lend(self.lent)

    def shell(self, lane: int, s: int, call: PipelineCall, modules: Mapping[str, nn.Module]) -> Shell:
        stage = self.stages.stages[s]
        if (lane, s) not in self.shells:
            self.shells[lane, s] = Shell(stage, call.split)
            if s in self.foreign:
                self.fetched[lane, s] = Fetched(tensors_of(stage), self.device)
            fetched = self.fetched.get((lane, s))
            self.shells[lane, s].lend(fetched.tensors if fetched else self.lent, fetched is not None)
        self.shells[lane, s].follow(modules)
        return self.shells[lane, s]


def work_of(
    stages: Stages,
    call: PipelineCall,
    shells: Mapping[int, Shell],
    results: Results,
    sums: Sums,
    ended: Callable[[int], None],
) -> JobWork:
    if isinstance(stages, OverTime):
        return TimeChunks(stages, call, shells, results, sums, ended, sweep_of)
    return Pipeline(stages, call, shells, results, sums, ended)


def tensors_of(stage: Stage) -> dict[str, Tensor]:
    """A stage's tensors by the model's names, in the order in which a worker sends them to another."""
    own = named_tensors(stage.module)
    return {stage.names[name]: tensor for name, tensor in own.items() if name in stage.names}


def first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The first name of its tensor, by each name."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def check_names(now: Mapping[str, str], then: Mapping[str, str]) -> None:
    """Raises ScheduleError where the model has other Parameters or buffers than when it was cut, or ties others."""
    if now == then:
        return
    other = sorted(now.keys() ^ then.keys())
    if other:
        raise ScheduleError(
            f"the model was cut {'with' if other[0] in then else 'without'} {other[0]}: what prunes or parametrizes "
            f"its weights comes before bppsa.compile; compile the model again"
        )
    tied = [name for name in now if now[name] != then[name]]
    if tied:
        raise ScheduleError(
            f"{tied[0]} was the same Parameter as {then[tied[0]]} when the model was cut, and is {now[tied[0]]} now: "
            f"load_state_dict(assign=True) unties weights; tie it as it was, or compile the model again"
        )


def same_memory(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.layout is torch.strided and a.data_ptr() == b.data_ptr())


def lent(tensor: Tensor) -> Tensor:
    """A leaf of the same memory: what is computed with it leaves the model's own `.grad` alone."""
    return nn.Parameter(tensor.detach(), tensor.requires_grad) if isinstance(tensor, nn.Parameter) else tensor


@contextmanager
def inside(lanes: int, taken: list[Decision], asked: SweepChoice) -> Iterator[None]:
    """What the thread of a lane runs in: the cores are shared out among all lanes, and decisions noted in `taken`."""
    torch.set_num_threads(max(1, cores() // lanes))
    push(taken, *asked)
    try:
        yield
    finally:
        pop()


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
