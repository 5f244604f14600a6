"""From a model and a schedule to a `Scheduled`: cut, placed, and each rank left with the weights that it owns."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from bppsa.common.stages import COST, MEASURED, OverTime, Stages
from bppsa.distributed.compiled import Scheduled, kind_for, trainer_of
from bppsa.distributed.over_time.training import TimeTraining
from bppsa.distributed.script.groups import in_group
from bppsa.distributed.steps.agreement import fingerprint
from bppsa.distributed.steps.fill import fill
from bppsa.distributed.steps.local import Local
from bppsa.distributed.steps.recut import Twin, recutting
from bppsa.distributed.steps.speeds import stage_speeds, threads_of_one, workers_of
from bppsa.distributed.steps.training import Settings, Training
from bppsa.errors import ScheduleError, StrategyError
from bppsa.runtime.worker.shell import holder, named_tensors
from bppsa.schedule.job_graph.spec import bound_to
from bppsa.schedule.timeline import Timeline

if TYPE_CHECKING:
    from bppsa.runtime.transport.group import GroupTransport


def scheduled(
    model: nn.Module,
    settings: Settings,
    stages: int | Sequence[nn.Module],
    example: Any,
    keywords: Mapping[str, Any] | None,
    source: nn.Module,
) -> Scheduled:
    """example, keywords: a batch of the model's arguments; None: the first call's. source: what the model is a copy of,
    which a loss may read. Raises as `bppsa.compile` says."""

    def begin(compiled: Scheduled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Training:
        cutting = partial(cut, model, stages, args, kwargs)
        starting = start_in_group if in_group() else start
        return starting(compiled, model, settings, cutting)

    compiled = kind_for(model)(model, settings, begin)
    trainer_of(compiled).source = weakref.ref(source)  # it may hold weights that other ranks own
    if example is not None or keywords is not None:
        args = example if isinstance(example, tuple) else () if example is None else (example,)
        trainer_of(compiled).begin(*args, **(keywords or {}))
    elif in_group():
        raise ScheduleError(
            "in a process group the model is cut before its first call, as each rank keeps only what it owns; "
            "give example_inputs="
        )
    return compiled


def check_stages(settings: Settings, stages: int | Sequence[nn.Module] | None) -> None:
    """Raises StrategyError for options that say nothing about this schedule, or about a process without others."""
    chunks = getattr(settings.schedule, "chunks", None)
    if chunks is not None and stages is not None:
        raise StrategyError(
            f"stages= says nothing with {settings.schedule}, whose stages are {chunks} chunks of each recurrent layer; "
            f"leave it out"
        )
    if (settings.balance != COST or settings.speeds) and (chunks is not None or not isinstance(stages, int | None)):
        name = "speeds=" if settings.speeds else "balance="
        raise StrategyError(f"{name} says nothing where stages are given or are chunks of time; leave it out")
    if settings.recompute is not None and chunks is not None:
        raise StrategyError(
            f"recompute= says nothing with {settings.schedule}, whose chunks keep the states of recurrent layers; "
            f"leave it out, or cut time into more chunks"
        )
    if settings.local and chunks is not None:
        raise StrategyError(
            f"data='local' says nothing with {settings.schedule}, which cuts time: ranks have no rows of their own; "
            f"leave it out"
        )
    if settings.local and not in_group():
        raise StrategyError(
            "data='local' is of ranks that bring rows of their own, and there is no process group; call "
            "torch.distributed.init_process_group first, or leave it out"
        )


def counterparts(model: nn.Module, clone: nn.Module, stages: int | Sequence[nn.Module]) -> int | Sequence[nn.Module]:
    """Submodules of the model given as stages, as those of its clone."""
    if isinstance(stages, int):
        return stages
    twins = dict(zip(model.modules(), clone.modules(), strict=True))
    return [twins.get(stage, stage) for stage in stages]


def cut(
    model: nn.Module,
    stages: int | Sequence[nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: Settings,
    all_gather: Callable[[Any], Sequence[Any]] = lambda own: [own],
) -> Stages:
    """all_gather: gives what each rank says."""
    from bppsa.fxpasses.over_time import over_time  # torch.export takes a second to import
    from bppsa.fxpasses.partition import partition

    chunks = getattr(settings.schedule, "chunks", None)
    if chunks is not None:
        return over_time(model, args, kwargs, chunks)
    if not isinstance(stages, int) or (settings.balance == COST and not settings.speeds):
        return partition(model, tuple(args), stages, example_kwargs=kwargs)
    bound = bound_to(settings.schedule, stages, settings.microbatches, settings.workers)
    speeds = stage_speeds(bound, stages, settings.microbatches, settings.speeds)
    with threads_of_one(neighbours(settings.workers or workers_of(bound, stages, settings.microbatches))):
        return partition(
            model,
            tuple(args),
            stages,
            example_kwargs=kwargs,
            balance=settings.balance,
            speeds=speeds,
            **({"all_gather": all_gather} if settings.balance == MEASURED else {}),
        )


def start(compiled: Scheduled, model: nn.Module, settings: Settings, cutting: Callable[..., Stages]) -> Training:
    stages = cutting(settings)
    training = training_of(stages)(compiled, settings, stages)
    check_square(settings, training.plan("step", settings.microbatches).timeline)
    fill(compiled, named_tensors(compiled), device_for(compiled), training.seed)
    training.engine = Local(training.stages, compiled, settings.asked)
    training.again = recutting(stages, compiled, lambda: model)
    return training


def start_in_group(
    compiled: Scheduled, model: nn.Module, settings: Settings, cutting: Callable[..., Stages]
) -> Training:
    """Raises on every rank where one raises."""
    from bppsa.distributed.steps.ranks import (  # they need a PyTorch that was built with torch.distributed
        Ranks,
        without_weights,
    )
    from bppsa.runtime.transport.group import GroupTransport

    transport = GroupTransport(device=device_for(compiled))
    with transport.telling("compile"):
        settings = seeded(placed(settings, transport.size), transport)
        stages = cutting(settings, lambda own: [of for _, of in sorted(transport.all_gather(own).items())])
        training = training_of(stages)(compiled, settings, stages)
        timeline = training.plan("step", settings.microbatches).timeline
        check_square(settings, timeline)
        if transport.size != timeline.W:
            raise ScheduleError(
                f"the schedule is for W={timeline.W} workers, and the process group has {transport.size} ranks; "
                f"start as many, or choose a schedule for them"
            )
    transport.agree(fingerprint(training))
    owners: dict[int, list[int]] = {}
    for number, (s, _, _) in enumerate(timeline.jobs):
        if timeline.graph.owner[number] not in owners.setdefault(s, []):
            owners[s].append(timeline.graph.owner[number])
    light = without_weights(training.stages)
    training.again, training.follows = recutting(stages, compiled, Twin(model)), False
    keep = {name for s, at in owners.items() if transport.rank in at for name in stages.stages[s].names.values()}
    had_weights = holds_weights(compiled)
    leave_others(compiled, stages, keep)
    if had_weights and not holds_weights(compiled):
        warnings.warn(
            f"rank {transport.rank} owns no weights under {settings.schedule}, and torch.optim makes no optimizer of "
            f"none; cut more stages, or let the other ranks alone make and step theirs",
            stacklevel=2,
        )
    fill(compiled, named_tensors(compiled), device_for(compiled), training.seed)
    training.use(light)
    training.engine = Ranks(light, compiled, owners, transport, neighbours(transport.size), settings.asked)
    return training


def check_square(settings: Settings, timeline: Timeline) -> None:
    S, B, W = timeline.S, settings.microbatches, timeline.W
    if getattr(settings.schedule, "square", False) and not S == B == W:
        raise ScheduleError(
            f"{settings.schedule} has as many micro-batches and workers as stages, and here are S={S} stages, B={B} "
            f"micro-batches and W={W} workers; give stages={W}, microbatches={W}"
        )


def training_of(stages: Stages) -> type[Training]:
    return TimeTraining if isinstance(stages, OverTime) else Training


def placed(settings: Settings, ranks: int) -> Settings:
    if settings.workers not in (None, ranks):
        raise ScheduleError(f"workers={settings.workers}, and the process group has {ranks} ranks; leave workers= out")
    return replace(settings, workers=ranks)


def seeded(settings: Settings, transport: GroupTransport) -> Settings:
    """The settings with rank 0's seed, where none is given."""
    seeds = transport.all_gather(torch.initial_seed() if settings.seed is None else settings.seed)
    return replace(settings, seed=seeds[0] if settings.seed is None else settings.seed)


def neighbours(ranks: int) -> int:
    """How many ranks share this machine: torchrun says so."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks))


def leave_others(model: nn.Module, stages: Stages, keep: set[str]) -> None:
    """Takes from the model the Parameters and buffers of stages that other ranks own."""
    elsewhere = {name for stage in stages.stages for name in stage.names.values()} - keep
    own = named_tensors(model)
    kept = {id(own[name]) for name in own if name in keep}  # a tied weight has names that no stage knows
    gone = {id(own[name]) for name in own if name in elsewhere} - kept
    for name, tensor in own.items():
        if id(tensor) in gone:
            module, attribute = holder(model, name)
            table = module._parameters if attribute in module._parameters else module._buffers
            table[attribute] = None


def holds_weights(model: nn.Module) -> bool:
    return next(model.parameters(), None) is not None


def device_for(model: nn.Module) -> torch.device:
    """Where a process has its weights: where they are, and for a model on the meta device the rank's own."""
    devices = {tensor.device for tensor in named_tensors(model).values() if not tensor.is_meta}
    if devices:
        return next(iter(devices))
    if in_group() and dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")
