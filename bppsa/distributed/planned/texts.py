"""What a plan says of itself: what it was computed from, and what would help where nothing fits."""

from __future__ import annotations

from typing import NamedTuple

import torch

from bppsa.distributed.planned.estimates import WorkerRates
from bppsa.distributed.planned.ranking import GIGA, PlannedSchedule, Ranking
from bppsa.distributed.planned.tracing import StepTrace


class PlannedStep(NamedTuple):
    """rows: of a step, over all workers. memory: bytes that a worker may hold, None: any."""

    workers: int
    rows: int
    microbatches: int
    memory: float | None


def gb(number: float) -> str:
    return f"{number / GIGA:.4g}"


def about(
    name: str,
    trace: StepTrace,
    step: PlannedStep,
    rates: WorkerRates,
    optimizer: str,
    dtype: torch.dtype | None,
    *,
    measured: bool,
) -> tuple[str, ...]:
    """A line each: the model, the workers, the step. measured: whether times were given."""
    parameters = sum(one.elements for one in trace.parameters.values())
    flops = sum(op.forward[0] for op in trace.ops) * step.microbatches
    memory = "" if step.memory is None else f", {step.memory / GIGA:g} GB"
    return (
        f"{name}: {parameters:,} parameters; {flops:.4g} flops of matrix products and the like in a forward of the "
        f"batch",
        f"{step.workers} workers, each {'measured times' if measured else speed(rates)}, "
        f"{8 * rates.sent / 1e9:g} Gbit/s between workers{memory}",
        f"{step.rows} rows a step in {step.microbatches} micro-batches; {dtype or 'the dtypes of the model'}; "
        f"{optimizer}",
    )


def speed(rates: WorkerRates) -> str:
    own = "its own memory's bandwidth not counted"
    if rates.moved is not None:
        own = f"{rates.moved / 1e9:g} GB/s of its own memory"
    return f"{rates.flops / 1e12:g} TFLOP/s, {own}"


def nothing_fits(found: Ranking, step: PlannedStep) -> str:
    """What is nearest, what of it is largest, and what would help."""
    if not found.large:
        return "; ".join(f"{name}: {why}" for name, why in found.refused.items())
    least = found.large[0]
    size, what, mend = max(kinds_held(least, step))
    limit = step.memory or 0.0
    return (
        f"no schedule fits in memory_gb={limit / GIGA:g} of each of {step.workers} workers: {least.name} with "
        f"{len(least.stages)} stages needs least, {gb(least.memory)} GB, {gb(least.memory - limit)} GB too many, of "
        f"which {what} are {gb(size)} GB; take {mend}"
    )


def kinds_held(one: PlannedSchedule, step: PlannedStep) -> list[tuple[int, str, str]]:
    """Bytes, what they are of, and what makes them fewer."""
    return [
        (
            one.weights + one.gradients + one.optimizer,
            "weights, gradients and optimizer state",
            f"more than {step.workers} workers, a smaller dtype, or an optimizer with less state",
        ),
        (
            one.activations,
            "activations",
            f"more micro-batches than {step.microbatches} (of {step.rows} rows), a smaller batch, or a smaller dtype",
        ),
        (one.fetched, "stages fetched from others", "more workers, and so smaller stages"),
    ]
