"""One call of a scheduled model, from a batch to its loss or outputs: what `compiled.py` shows to the user."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bppsa._workers.batches import is_batched, joined, parts, rows_of
from bppsa._workers.plans import KINDS, Plan, make_plan, only, predicted
from bppsa.errors import ScheduleError
from bppsa.runtime.worker import norms
from bppsa.runtime.worker.draws import Seed
from bppsa.runtime.worker.modes import Modes
from bppsa.runtime.worker.pipeline import Call, reads, writes
from bppsa.runtime.worker.results import Outcome, Results
from bppsa.schedule.spec import Build, Recipe, Schedule, bound_to
from bppsa.schedule.timeline import Timeline
from bppsa.stages import Stages


@dataclass(frozen=True)
class Settings:
    schedule: Schedule | Recipe | Build
    microbatches: int
    workers: int | None
    loss_fn: Callable[..., Tensor] | None
    loss_weight: Callable[[Any], float] | None
    seed: int | None  # None: torch's initial seed


@dataclass(frozen=True)
class Batch:
    """call: of its micro-batches. sizes: their rows. arguments: of each argument of the model, its tensors, whole."""

    call: Call
    rows: int
    sizes: list[int]
    arguments: list[list[Tensor]]

    @property
    def wanted(self) -> list[Tensor]:
        """Tensors that a gradient flows to."""
        return [x for tensors in self.arguments for x in tensors if x.requires_grad]

    def gradients(self, found: Mapping[tuple[int, int], Sequence[Tensor | None]]) -> list[Tensor | None]:
        """Of `wanted`. found: of each micro-batch and argument, those of the argument's tensors."""
        grads = []
        for v, tensors in enumerate(self.arguments):
            for at, x in enumerate(tensors):
                if x.requires_grad:
                    pieces = [found[b, v][at] if (b, v) in found else None for b in range(len(self.sizes))]
                    grads.append(whole(x, pieces, self.sizes if is_batched(x, self.rows) else None))
        return grads


class Engine(Protocol):
    """Runs a plan on all workers. state: what a forward gave, for its backward."""

    def run(self, plan: Plan, call: Call, state: Sequence[Results] = ()) -> tuple[Outcome, Sequence[Results]]: ...


class Training:
    """The stages of a model, its plans and its workers."""

    def __init__(self, model: nn.Module, settings: Settings, stages: Stages) -> None:
        self.model, self.settings, self.stages = model, settings, stages
        self.plans: dict[tuple[str, int], Plan] = {}
        self.calls = 0
        self.ran: tuple[Plan, Timeline] | None = None
        self.seed = torch.initial_seed() if settings.seed is None else settings.seed
        self.engine: Engine

    def plan(self, kind: str, count: int) -> Plan:
        """Of a call of `count` micro-batches. Raises ScheduleError where the schedule cannot run."""
        if (kind, count) not in self.plans:
            stages, workers = self.stages, self.settings.workers
            bound = bound_to(self.settings.schedule, len(stages), count, workers)
            costs = costs_of(stages, "W" in bound.directions)
            self.plans[kind, count] = make_plan(
                only(bound, len(stages), count, KINDS[kind]),
                len(stages),
                count,
                workers,
                costs,
                lambda action: reads(stages, action),
                lambda action: writes(stages, action),
            )
        return self.plans[kind, count]

    def batch(self, args: Sequence[Any], kwargs: Mapping[str, Any], modes: Modes) -> Batch:
        """Cut into micro-batches. Raises InputError where there are no rows."""
        arguments = self.stages.bind(*args, **kwargs)
        rows = rows_of(arguments)
        count = min(self.settings.microbatches, rows)
        cut = parts(arguments, rows, count)
        seeds = [Seed(self.seed, self.calls, b) for b in range(count)]
        self.calls += 1
        tensors = [[x for x in tree_leaves(argument) if isinstance(x, Tensor)] for argument in arguments]
        call = Call(cut, modes, seeds, split=self.plan("step", count).split)
        return Batch(call, rows, [rows_of(part) for part in cut], tensors)

    def run(self, kind: str, call: Call, state: Sequence[Results] = ()) -> tuple[Outcome, Sequence[Results]]:
        plan = self.plan(kind, len(call.arguments))
        found, state = self.engine.run(plan, call, state)
        for s, b in sorted(found.seen, key=lambda key: (key[1], key[0])):
            names = self.stages.stages[s].names
            for path, mean, variance in found.seen[s, b]:
                path_in_model = names[f"{path}.running_mean"].rpartition(".")[0]
                norm = self.model.get_submodule(path_in_model)
                if norm.running_mean is not None:  # in a group: owned here
                    norms.apply(norm, mean, variance)
        self.ran = plan, measured(plan.timeline, found)
        return found, state

    def last(self) -> tuple[Plan, Timeline]:
        """Of the last call, what ran and when, in seconds. Raises ScheduleError before the first."""
        if self.ran is None:
            raise ScheduleError("nothing has run yet; call step()")
        return self.ran

    def predicted(self) -> Timeline:
        return predicted(*self.last())

    def outputs(self, found: Outcome, sizes: Sequence[int]) -> Any:
        return joined([self.stages.assemble(found.outputs[b]) for b in range(len(sizes))], sizes)


def whole(x: Tensor, pieces: Sequence[Tensor | None], sizes: Sequence[int] | None) -> Tensor | None:
    """A tensor's gradient from those of its pieces, or, with sizes=None, from those of each micro-batch."""
    if all(piece is None for piece in pieces):
        return None
    if sizes is None:
        return functools.reduce(torch.add, [piece for piece in pieces if piece is not None])
    filled = [
        x.new_zeros(size, *x.shape[1:]) if piece is None else piece for piece, size in zip(pieces, sizes, strict=True)
    ]
    return torch.cat(filled)


def costs_of(stages: Stages, split: bool) -> dict[str, list[float]]:
    """Of each stage's jobs: seconds where they were measured, flops otherwise; a backward is two forwards."""
    forward = [max(stage.flops if stage.seconds is None else stage.seconds, 1e-9) for stage in stages.stages]
    return {"F": forward, "B": [cost * (1 if split else 2) for cost in forward], "W": forward}


def measured(timeline: Timeline, found: Outcome) -> Timeline:
    """The same jobs at the times they took, from the first one's start."""
    times: Mapping[Any, tuple[float, float]] = found.times
    first = min(start for start, _ in times.values())
    start, end = ([times[job][at] - first for job in timeline.jobs] for at in (0, 1))
    told = Timeline(timeline.graph, start, end, timeline.activation_size, timeline.weight_size)
    told.__dict__["peak_activations"] = found.peaks  # counted as it ran, which the times alone tell only roughly
    return told
