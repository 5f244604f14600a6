"""What training a model on workers would take, before there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bppsa.api.options import KINDS, is_int, is_positive
from bppsa.common.graph import tensors_in
from bppsa.distributed.planned.estimates import StageTimes, WorkerRates, estimates
from bppsa.distributed.planned.plan import TrainingPlan
from bppsa.distributed.planned.ranking import GIGA, Schedules, ranked
from bppsa.distributed.planned.states import state_of_optimizer
from bppsa.distributed.planned.texts import PlannedStep, about, nothing_fits
from bppsa.distributed.planned.tracing import traced
from bppsa.errors import ArgumentError, ScheduleError, StrategyError, kind_of
from bppsa.schedule.job_graph.spec import SPLIT

HALF = 2  # bytes
OPTIONAL = {"batch", "microbatches", "memory_gb", "device_gb_per_s"}


def plan_training(
    model: nn.Module,
    example: Any,
    *,
    workers: int,
    tflops: float,
    bandwidth_gbps: float,
    memory_gb: float | None = None,
    device_gb_per_s: float | None = None,
    dtype: torch.dtype | None = None,
    batch: int | None = None,
    microbatches: int | None = None,
    optimizer: str = "adamw",
    times: StageTimes | None = None,
    schedules: Schedules | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> TrainingPlan:
    """Return the schedules of the zoo for this model, ranked by predicted ms a step, each with and without recompute.

    The model is traced on the meta device and takes no memory, so it may be on that device itself. It should return its
    loss: of one that does not, all outputs are differentiated, and what a loss would take is not counted. It is cut
    between ops into as many stages as workers, and twice as many. A stage's time is that of its ops, each the longer of
    its flops at `tflops` and its bytes at `device_gb_per_s`: the best a device could do at these rates. Messages take
    their bytes at `bandwidth_gbps`, without latency; sums of gradients begin when the last job has ended.

    Args:
        model: what to train; left as it is.
        example: the positional arguments of a call, as a tuple, or the only one; tensors may be on the meta device.
        workers: how many.
        tflops: what a worker computes, in 10^12 flops a second.
        bandwidth_gbps: what a worker receives, in 10^9 bits a second.
        memory_gb: what a worker may hold, in 10^9 bytes; None: anything.
        device_gb_per_s: what a worker reads and writes of its own memory, in 10^9 bytes a second; None: counted as
            free.
        dtype: of weights, gradients and floating-point arguments; None: as they are.
        batch: rows of a step, over all workers; None: those of the example.
        microbatches: into how many the batch is divided; None: the most up to 2 * workers that divide it.
        optimizer: "sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw", or "adamw32", which keeps a float32 copy
            of the weights.
        times: measured (forward, backward, weight) in ms of a micro-batch, for each stage, in the place of estimates;
            there are as many stages then. weight: the gradient of the weights; backward: that of the input.
        schedules: what to choose from; by default the zoo.
        example_kwargs: the keyword arguments of the call.

    Raises:
        PartitionError: the model does not run without values, or has nothing to train (a RuntimeError).
        ArgumentError: an argument of another type, such as an array in the example (a TypeError).
        StrategyError: a number or a dtype that is none, an optimizer that is not known, or a batch that cannot be
            divided (a ValueError).
        ScheduleError: no schedule fits; the text says by how much, and what would help (a ValueError).
    """
    check_kinds(model, example, example_kwargs, schedules)
    check_numbers("count", is_count, workers=workers, batch=batch, microbatches=microbatches)
    check_numbers("finite number", is_positive, memory_gb=memory_gb, device_gb_per_s=device_gb_per_s)
    check_numbers("finite number", is_positive, tflops=tflops, bandwidth_gbps=bandwidth_gbps)
    check_given(dtype, times)
    state = state_of_optimizer(optimizer)
    given = tuple(example) if type(example) in (tuple, list) else (example,)
    named = dict(example_kwargs or {})
    rows = batch or rows_of([*given, *named.values()])
    count = microbatches or next(n for n in range(min(2 * workers, rows), 0, -1) if rows % n == 0)
    if rows % count:
        raise StrategyError(f"batch={rows} rows are no {count} equal micro-batches; take microbatches= that divide it")
    step = PlannedStep(workers, rows, count, memory_gb and GIGA * memory_gb)
    rates = WorkerRates(1e12 * tflops, device_gb_per_s and 1e9 * device_gb_per_s, 1e9 * bandwidth_gbps / 8)
    trace = traced(model, given, named, rows // count, dtype)
    numbers = [len(times)] if times else [workers, *([2 * workers] if 2 * workers <= len(trace.ops) else [])]
    cuts = [estimates(trace, S, rates, state, times) for S in numbers]
    found = ranked(cuts, microbatches=count, workers=workers, rates=rates, memory=step.memory, schedules=schedules)
    if not found.fit:
        raise ScheduleError(nothing_fits(found, step))
    lines = about(type(model).__name__, trace, step, rates, optimizer, dtype, measured=bool(times))
    return TrainingPlan(found, lines)


def is_count(value: Any) -> bool:
    return is_int(value) and is_positive(value)


def check_numbers(what: str, fits: Callable[[Any], bool], **numbers: Any) -> None:
    """Raises StrategyError for one that does not fit; None is for those that may be left out."""
    for name, value in numbers.items():
        if not fits(value) and not (value is None and name in OPTIONAL):
            raise StrategyError(f"{name}={value!r} is no {what} above 0")


def check_kinds(model: Any, example: Any, example_kwargs: Any, schedules: Any) -> None:
    """Raises ArgumentError for another type than each takes."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model= takes an nn.Module, not {kind_of(model)}")
    if example_kwargs is not None:
        KINDS["example_kwargs"].check("example_kwargs", example_kwargs)
    for leaf in tree_leaves((example, example_kwargs)):
        if getattr(leaf, "ndim", 0) and not isinstance(leaf, Tensor):
            raise ArgumentError(f"the example holds {kind_of(leaf)}; give tensors, as torch.from_numpy(x) is")
    if schedules is not None and (isinstance(schedules, str) or not isinstance(schedules, Iterable)):
        raise ArgumentError(
            f"schedules= takes a list of schedules, such as [bppsa.schedule.gpipe()], not {kind_of(schedules)}"
        )


def check_given(dtype: Any, times: Any) -> None:
    if dtype is not None and not is_trainable(dtype):
        raise StrategyError(
            f"dtype={dtype!r} is no floating-point dtype of torch of 16 bits or more, such as torch.bfloat16"
        )
    if times is None:
        return
    if not isinstance(times, Sequence) or not times:
        raise StrategyError(f"times={times!r} is no list of (forward, backward, weight) in ms for each stage")
    for s, own in enumerate(times):
        if not isinstance(own, Sequence) or len(own) != len(SPLIT) or not all(map(is_time, own)):
            raise StrategyError(f"times[{s}]={own!r} are not (forward, backward, weight) in ms, 0 or more")


def is_trainable(dtype: Any) -> bool:
    """Whether PyTorch computes gradients in it."""
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize >= HALF


def is_time(value: Any) -> bool:
    return is_positive(value) or (value == 0 and not isinstance(value, bool))


def rows_of(example: Sequence[Any]) -> int:
    first = next((leaf for leaf in tensors_in(example) if leaf.dim()), None)
    if first is None or not len(first):
        raise StrategyError("the example has no tensor with rows; say by batch= how many a step has")
    return len(first)
