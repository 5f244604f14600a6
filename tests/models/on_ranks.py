"""What each rank does with a model of the table, and what it has to show for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

import bppsa
from bppsa.schedule import Recipe, fsdp, lpp, zero_bubble
from tests.models import support as ours
from tests.models.zoo import MODELS
from tests.workers import support

SEEDS = (0, 1)


class Asked(NamedTuple):
    """A schedule of two ranks. stages: None for those that the case asks for."""

    schedule: Recipe
    stages: int | None = None


SCHEDULES: Mapping[str, Asked] = {
    "zero_bubble": Asked(zero_bubble(), 2),
    "lpp": Asked(lpp(2, 1)),
    "fsdp": Asked(fsdp()),
}
SCHEDULE_OF = {name: tuple(SCHEDULES)[i % len(SCHEDULES)] for i, name in enumerate(MODELS)}


class Trained(NamedTuple):
    """losses: of the steps; gradients: of each, of the Parameters that this rank has; states: of the whole model, after
    the update that follows each."""

    losses: list[Tensor]
    gradients: list[dict[str, Tensor | None]]
    states: list[dict[str, Any]]


def trained(rank: int, name: str) -> Trained:
    """Two steps with other batches, and an update after each."""
    case, asked = MODELS[name], SCHEDULES[SCHEDULE_OF[name]]
    args, kwargs, _ = case.batch(ours.ROWS, SEEDS[0])
    compiled = bppsa.compile(
        case.model(),
        schedule=asked.schedule,
        stages=asked.stages or case.stages,
        microbatches=ours.MICROBATCHES,
        loss_fn=case.loss_fn,
        example_inputs=args,
        **({"example_kwargs": kwargs} if kwargs else {}),
    )
    trainer, found = bppsa.trainer(compiled), Trained([], [], [])
    for seed in SEEDS:
        args, kwargs, target = case.batch(ours.ROWS, seed)
        found.losses.append(trainer.step(*ours.inputs_of(target, args, case), **kwargs))
        found.gradients.append(support.gradients(compiled))
        ours.update(compiled)
        found.states.append(trainer.full_state_dict())
    return found
