"""Which parts of each stage run again in its backward, by what the user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bppsa.common.stages import SELECTIVE, OverTime, Stage, Stages
from bppsa.decisions import warn_once
from bppsa.errors import StrategyError
from bppsa.schedule.recompute import FULL

RecomputeChoice = str | Callable[[int], str | None] | None
CHOICES = (FULL, SELECTIVE, None)


def recomputed(stages: Stages, asked: RecomputeChoice) -> Stages:
    """The stages with the parts that are to run again. Raises StrategyError where a function gives something else than
    "full", "selective" and None."""
    if isinstance(stages, OverTime):
        return stages
    if asked is None:
        return stages
    chosen = [chosen_for(s, asked) for s in range(len(stages))]
    return replace(stages, stages=tuple(map(with_parts, range(len(stages)), stages.stages, chosen)))


def chosen_for(s: int, asked: Callable[[int], str | None] | str) -> str | None:
    found = asked(s) if callable(asked) else asked
    if not isinstance(found, str | None) or found not in CHOICES:
        raise StrategyError(f'recompute({s}) gives {found!r} for stage {s}; let it give "full", "selective" or None')
    return found


def with_parts(s: int, stage: Stage, mode: str | None) -> Stage:
    if mode is None:
        return stage
    if not stage.recomputable:
        changed = f", as it changes {stage.changes[0]} in its forward" if stage.changes else ""
        warn_once(f"stage {s} keeps its activations: it cannot run again{changed}")
    return replace(stage, recomputed=tuple(replace(part, products=mode == SELECTIVE) for part in stage.recomputable))


def share_again(stage: Stage) -> float:
    """The share of the stage's forward that runs again."""
    return sum(part.again for part in stage.recomputed) / stage.cost if stage.cost else float(bool(stage.recomputed))
