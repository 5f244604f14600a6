"""What the jobs of stages cost: in flops, as the cut counts them, or in the seconds that stages were measured to
take."""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.common.stages import Stage
from bppsa.distributed.steps.recomputed import share_again
from bppsa.schedule.job_graph.spec import Schedule
from bppsa.schedule.recompute import Recompute

LEAST_FLOPS, LEAST_SECONDS = 1e-9, 1e-9  # a job takes some time


def in_flops(stages: Sequence[Stage], schedule: Schedule) -> dict[str, list[float]]:
    """What each stage's jobs cost, by direction; a backward counts as two forwards."""
    forward = [max(stage.cost, LEAST_FLOPS) for stage in stages]
    both = forward if "W" in schedule.directions else [2 * cost for cost in forward]
    return {"F": forward, "B": both, "W": forward}


def in_seconds(stages: Sequence[Stage], schedule: Schedule, count: int) -> dict[str, list[float]]:
    """The same of one of `count` micro-batches; nothing where a stage was not measured. Half of a backward is the
    weights'."""
    measured = [stage.seconds for stage in stages if stage.seconds is not None]
    if len(measured) < len(stages):
        return {}
    whole = [max(time.backward, LEAST_SECONDS) / count for time in measured]
    part = [time / 2 for time in whole] if "W" in schedule.directions else whole
    return {"F": [max(time.forward, LEAST_SECONDS) / count for time in measured], "B": part, "W": part}


def run_again(stages: Sequence[Stage]) -> Recompute | None:
    """What runs again before each backward: shares of the stages' forwards."""
    shares = [share_again(stage) for stage in stages]
    return Recompute(again=shares, kept=1) if any(shares) else None
