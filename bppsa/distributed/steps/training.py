"""One call of a scheduled model, from a batch to its loss or outputs: what `trainer.py` shows to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bppsa.common.graph import tensors_in
from bppsa.common.recent import remember
from bppsa.common.stages import COST, Situation, Stages
from bppsa.decisions import Report, warn_once
from bppsa.distributed.batch.batches import Batch, by_leaf, check_rows, comparable, parts, rows_of
from bppsa.distributed.batch.whole import check_wholes
from bppsa.distributed.losses.counts import LossFunction, LossWeight, is_sum
from bppsa.distributed.losses.microbatches import MicrobatchLosses
from bppsa.distributed.losses.reads import names_in
from bppsa.distributed.losses.weighted import WeightedLoss
from bppsa.distributed.steps.costs import in_flops, in_seconds, run_again
from bppsa.distributed.steps.member import SweepChoice, check_names, first_names
from bppsa.distributed.steps.plans import KINDS, StepPlan, check_changes, make_plan, only, own_batches, predicted
from bppsa.distributed.steps.recomputed import RecomputeChoice, recomputed
from bppsa.distributed.steps.speeds import at_speeds
from bppsa.errors import InputError, ScheduleError, StrategyError
from bppsa.frontend.state import show
from bppsa.fxpasses.partition.situations import situation_of
from bppsa.plan.forward import SEQUENTIAL
from bppsa.plan.strategy import AUTO
from bppsa.runtime.worker import norms
from bppsa.runtime.worker.draws import Seed
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.pipeline import PipelineCall, reads, writes
from bppsa.runtime.worker.results import Outcome, Results
from bppsa.runtime.worker.shell import named_tensors
from bppsa.schedule.job_graph.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.programs.messages import Items
from bppsa.schedule.simulator import Cost
from bppsa.schedule.timeline import Timeline
from bppsa.schedule.units import Units

T = TypeVar("T")
MOST_FORMS = 16  # of calls for which a model is kept cut: modes, dtypes, and which arguments there are


@dataclass(frozen=True)
class Settings:
    schedule: Schedule | Recipe | Build
    microbatches: int
    workers: int | None
    loss_fn: LossFunction | None
    loss_weight: LossWeight | None
    seed: int | None  # None: torch's initial seed
    local: bool = False  # whether each rank brings its own rows
    asked: SweepChoice = (AUTO, SEQUENTIAL)
    recompute: RecomputeChoice = None
    balance: str = COST
    speeds: tuple[float, ...] = ()  # of workers

    def __post_init__(self) -> None:
        """Raises StrategyError for a weight of micro-batches that no loss is weighted by."""
        if self.loss_weight is not None and (self.loss_fn is None or is_sum(self.loss_fn)):
            why = "a sum is not weighted" if self.loss_fn else "without loss_fn= the model returns its loss"
            raise StrategyError(f"loss_weight= says nothing here: {why}; leave it out, or let loss_fn= be a mean")


class WorkerEngine(Protocol):
    """Runs a plan on all workers. state: what a forward gave, for its backward. rank: of this process."""

    rank: int
    ranks: int  # how many there are

    def call(self) -> AbstractContextManager[None]:
        """Around each call of the model: what one worker raises, all raise."""

    def for_stages(self, stages: Stages) -> WorkerEngine:
        """An engine for other stages of the same model, with the same weights in each."""

    def run(
        self, plan: StepPlan, call: PipelineCall, state: Sequence[Results] = ()
    ) -> tuple[Outcome, Sequence[Results]]: ...

    def all_gather(self, value: T) -> Sequence[T]:
        """What each rank gives, by rank."""

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What all ranks give."""

    def first_owned(self, names: Iterable[str]) -> set[str]:
        """The Parameters that count on this rank, so that each counts once."""


@dataclass
class Drawn:
    """What random numbers are drawn by: the seed, and how many calls of the model there were."""

    seed: int
    calls: int = 0


class Training:
    """The stages of a model, its plans and its workers."""

    def __init__(self, model: nn.Module, settings: Settings, stages: Stages) -> None:
        self.model, self.settings, self.stages = model, settings, recomputed(stages, settings.recompute)
        self.plans: dict[tuple[str, int], StepPlan] = {}
        self.drawing = Drawn(torch.initial_seed() if settings.seed is None else settings.seed)
        self.others: dict[Situation | None, Training] = {stages.situation: self}  # of the same model
        self.names = first_names(named_tensors(model))
        self.follows = True  # whether what changes on the model is seen where it is cut again
        self.again: Callable[[Sequence[Any]], Stages] | None = None  # cuts the model as it is now
        self.losses = MicrobatchLosses(settings.loss_fn, settings.loss_weight, self.stages, names_in(model))
        self.ran: tuple[StepPlan, Callable[[], Timeline]] | None = None
        self.engine: WorkerEngine

    def use(self, stages: Stages) -> None:
        """From now on these stages run, which are the same but for weights that other workers own."""
        self.stages = self.losses.stages = stages

    def now(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Training:
        """The one for the model's present modes, and for such arguments: made when first called for."""
        if self.again is None:
            return self
        if changed := self.stages.changed():
            if not self.follows:
                raise ScheduleError(f"{changed} has changed since the model was cut; compile the model again")
            check_names(first_names(named_tensors(self.model)), self.names)
            warn_once(f"{changed} has changed since the model was cut, so it is cut again, as after each such change")
            self.others.clear()
        values = (self.stages.taken or self.stages.bind)(*args, **kwargs)
        situation = situation_of(self.model, values)
        if situation not in self.others:
            other = type(self)(self.model, self.settings, self.again(values))
            other.drawing, other.others = self.drawing, self.others
            other.again, other.follows = self.again, self.follows
            other.engine = self.engine.for_stages(other.stages)
            remember(self.others, situation, other, MOST_FORMS)
        return self.others[situation]

    @property
    def seed(self) -> int:
        return self.drawing.seed

    def plan(self, kind: str, count: int) -> StepPlan:
        """The plan of a call of `count` micro-batches. Raises ScheduleError where the schedule cannot run."""
        if (kind, count) not in self.plans:
            stages, workers = self.stages, self.settings.workers
            bound = self.bound(count)
            chosen = only(bound, len(stages), count, KINDS[kind])
            plan = make_plan(
                chosen,
                len(stages),
                count,
                workers,
                self.prices(bound, count),
                run_again(stages.stages),
                Units("s" if all(stage.seconds for stage in stages.stages) else "flops"),
                *self.items(bound),
            )
            check_changes(plan.timeline, [stage.changes for stage in stages.stages])
            self.plans[kind, count] = plan
        return self.plans[kind, count]

    def bound(self, count: int) -> Schedule:
        """The schedule, for these stages and so many micro-batches."""
        return bound_to(self.settings.schedule, len(self.stages), count, self.settings.workers)

    def costs(self, schedule: Schedule) -> dict[str, list[float]]:
        """What each stage's jobs cost, in flops."""
        return in_flops(self.stages.stages, schedule)

    def prices(self, schedule: Schedule, count: int) -> dict[str, Cost]:
        """What jobs cost, on the workers that run them: in seconds where stages were measured."""
        costs, speeds = in_seconds(self.stages.stages, schedule, count) or self.costs(schedule), self.settings.speeds
        if not speeds:
            return dict(costs)
        return {d: at_speeds(each, d, schedule, speeds) for d, each in costs.items()}

    def items(self, schedule: Schedule) -> tuple[Items, Items]:
        """What a job reads and writes."""
        return partial(reads, self.stages), partial(writes, self.stages)

    @contextmanager
    def call(self) -> Iterator[int]:
        """Around each call of the model. Gives its number, which draws of random numbers go by: calls count on every
        rank, also where the call fails before this rank has begun it."""
        number = self.drawing.calls
        self.drawing.calls += 1
        with self.engine.call():
            yield number

    def batch(self, number: int, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> Batch:
        """Cut into micro-batches. number: of the call.

        Raises InputError where there are no rows, or too few of a rank's own.
        """
        arguments = self.stages.bind(*args, **kwargs)
        rows, most = rows_of(arguments), self.settings.microbatches
        count = most if self.settings.local else min(most, rows)
        plan = self.plan("step", count)
        mine = own_batches(plan, self.engine.rank) if self.settings.local else range(count)
        if rows < len(mine):
            raise InputError(
                f"rank {self.engine.rank} brings {rows} rows for its {len(mine)} micro-batches; bring more"
            )
        leaves = tree_leaves(arguments)
        check_rows(leaves, self.stages.by_rows, rows)
        cut = dict(zip(mine, parts(arguments, self.stages.by_rows, len(mine)), strict=True))
        own = {b: rows_of(part) for b, part in cut.items()}
        if len(mine) > 1:
            check_wholes(leaves, self.stages.by_rows, self.stages.shapes, rows, list(own.values()))
            self.stages.check_rows(leaves)
        sizes = self.gathered(own)
        seeds = [Seed(self.seed, number, b) for b in range(count)]
        tensors = list(map(tensors_in, arguments))
        shapes = [(tuple(x.shape), x.dtype) for of_argument in tensors for x in of_argument]
        signature = repr((modes, list(sizes.values()) if self.settings.local else shapes))
        call = PipelineCall(
            [cut.get(b, ()) for b in range(count)],
            modes,
            seeds,
            signature,
            () if self.settings.local else comparable(leaves),
            split=plan.split,
        )
        return Batch(call, mine, rows, [sizes[b] for b in range(count)], tensors, values=arguments)

    def gathered(self, mine: Mapping[int, T]) -> dict[int, T]:
        """What all ranks know of their micro-batches, by micro-batch."""
        told = self.engine.all_gather(mine) if self.settings.local else [mine]
        return {b: value for of_rank in told for b, value in of_rank.items()}

    def run(self, kind: str, call: PipelineCall, state: Sequence[Results] = ()) -> tuple[Outcome, Sequence[Results]]:
        plan = self.plan(kind, len(call.arguments))
        found, state = self.engine.run(plan, call, state)
        for s, b in sorted(found.seen, key=lambda key: (key[1], key[0])):
            names = self.stages.stages[s].names
            for path, mean, variance in found.seen[s, b]:
                path_in_model = names[f"{path}.running_mean"].rpartition(".")[0]
                norm = self.model.get_submodule(path_in_model)
                if norm.running_mean is not None:  # in a group: owned here
                    norms.apply(norm, mean, variance)
        self.ran = plan, cache(partial(measured, plan.timeline, found.times, found.workers, found.peaks))
        once = {decision.path: decision for decision in found.decisions}  # of several micro-batches the last
        show(self.model, Report(tuple(once.values())))
        return found, state

    def last(self) -> tuple[StepPlan, Timeline]:
        """What ran in the last call and when, in seconds. Raises ScheduleError before the first."""
        if self.ran is None:
            raise ScheduleError("nothing has run yet; call step()")
        plan, timeline = self.ran
        return plan, timeline()

    def predicted(self) -> Timeline:
        return predicted(*self.last())

    def loss(self, batch: Batch, target: Any) -> WeightedLoss:
        """The loss of the micro-batches' outputs. Raises InputError where the target has not the batch's rows."""
        return self.losses.of(batch, target, self.gathered, partial(self.together, len(batch.sizes)))

    @property
    def returns_loss(self) -> bool:
        """Whether the model returns its loss, that of all rows here."""
        return self.settings.loss_fn is None and not self.settings.local

    def weighted(self, batch: Batch, loss: WeightedLoss) -> Batch:
        """The batch with what makes the loss that the model returns for it from those of the micro-batches."""
        if not self.returns_loss:
            return batch
        return replace(batch, weights=loss.weights, call=replace(batch.call, around=loss.around))

    def together(self, count: int) -> bool:
        """Whether the losses of all micro-batches come about in one process."""
        if not self.settings.local and self.engine.ranks == 1:
            return True
        timeline, last = self.plan("step", count).timeline, len(self.stages) - 1
        return len({timeline.worker[last, b, "F"] for b in range(count)}) == 1

    def outputs(self, found: Outcome, batch: Batch) -> Any:
        return batch.outputs({b: self.stages.assemble(found.outputs[b]) for b in batch.mine})

    def cotangents(self, made: Any, batch: Batch, grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
        """The cotangents that each micro-batch begins with, by tensor that the last stage returns. grads: of each leaf
        of the batch's outputs; made: what the last stage returned for a micro-batch."""
        totals = zip(by_leaf(made, self.stages.assemble, grads), tree_leaves(made), strict=True)
        return batch.cotangents([grad for grad, x in totals if isinstance(x, Tensor)])


def measured(timeline: Timeline, times: Mapping[Any, Any], workers: Mapping[Any, int], peaks: list[int]) -> Timeline:
    """The same jobs where they ran, at the times they took, from the first one's start."""
    first = min(start for start, _ in times.values())
    start, end = ([times[job][at] - first for job in timeline.jobs] for at in (0, 1))
    graph = replace(timeline.graph, worker=[workers[job] for job in timeline.jobs])
    told = Timeline(graph, start, end, timeline.activation_size, timeline.weight_size, units=Units("s"))
    told.__dict__["peak_activations"] = peaks  # counted as it ran, which the times alone tell only roughly
    return told
