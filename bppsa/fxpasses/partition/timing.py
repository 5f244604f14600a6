"""What parts of a model take, forward and backward, measured on the example: for cuts that flops do not balance.

Each block of ops runs as a stage of its own, one after another as in a step, so that memory and caches are as there. Of
the stages that come out the same is measured again: what a block takes more by itself than among others shifts the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bppsa.common.graph import differentiable_in, tensors_in
from bppsa.common.leaves import without_graph
from bppsa.common.stages import Seconds, Stages
from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.call.arguments import Arguments
from bppsa.fxpasses.partition.call.kept import is_on_meta, kept
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.cut.balance import balanced
from bppsa.fxpasses.partition.cut.building import build
from bppsa.fxpasses.partition.cut.order import Order
from bppsa.fxpasses.theirs import theirs

# Takes what this worker has measured, and gives what each has.
GatherSeconds = Callable[[list[Seconds]], Sequence[list[Seconds]]]
RUNS = 4  # after one that is not counted; the shortest counts, as all else is somebody else's
ROUNDS = 3  # of cuts that are measured
MARGIN = 0.01  # over the least possible slowest stage


class MeasuredCut(NamedTuple):
    """ends: for each stage, the index of the first block behind it. seconds: of each stage, of the whole example."""

    ends: list[int]
    seconds: list[Seconds]


def alone(own: list[Seconds]) -> Sequence[list[Seconds]]:
    """What one worker has measured, or several in one process have."""
    return [own]


def measured_cut(
    model: nn.Module,
    graph: CapturedGraph,
    order: Order,
    arguments: Arguments,
    stages: int,
    speeds: Sequence[float],
    all_gather: GatherSeconds,
) -> MeasuredCut:
    """The most even cut that was found. speeds: of each stage; (): alike. Raises PartitionError on the meta device."""
    if is_on_meta(model):
        raise PartitionError(
            f"{type(model).__name__} is on the meta device, where nothing can be measured; leave balance='measured' out"
        )

    def measured(ends: Sequence[int]) -> list[Seconds]:
        cut = build(model, graph, order, ends, arguments)
        return together(all_gather(seconds_of(model, cut, arguments.examples)))

    costs = [sum(times) for times in measured(range(1, len(order.blocks) + 1))]
    found: list[tuple[float, MeasuredCut]] = []
    for _ in range(ROUNDS):
        ends = balanced(costs, order.crossing(), stages, speeds, MARGIN)
        if any(ends == cut.ends for _, cut in found):
            break
        seconds = measured(ends)
        slowest = max(sum(times) / speed for times, speed in zip(seconds, speeds or [1.0] * stages, strict=True))
        found.append((slowest, MeasuredCut(ends, seconds)))
        for (start, end), times in zip(pairwise([0, *ends]), seconds, strict=True):
            scale = sum(times) / (sum(costs[start:end]) or 1.0)
            costs[start:end] = [cost * scale for cost in costs[start:end]]
    return min(found, key=lambda pair: pair[0])[1]


def together(told: Sequence[Sequence[Seconds]]) -> list[Seconds]:
    """The mean over workers."""
    return [Seconds(*(sum(each) / len(told) for each in zip(*same, strict=True))) for same in zip(*told, strict=True)]


def seconds_of(model: nn.Module, stages: Stages, examples: Sequence[Any]) -> list[Seconds]:
    with kept(model), torch.enable_grad():
        runs = [one_run(stages, examples) for _ in range(1 + RUNS)][1:]
    return [Seconds(*(min(each) for each in zip(*same, strict=True))) for same in zip(*runs, strict=True)]


def one_run(stages: Stages, examples: Sequence[Any]) -> list[Seconds]:
    """Forward through all stages, and backward."""
    values: dict[int, Any] = dict(enumerate(examples))
    forward: list[float] = []
    tapes: list[tuple[list[Tensor], list[Tensor]]] = []
    for stage in stages.stages:
        given = [tree_map(without_graph, values[i]) for i in stage.inputs]
        leaves = differentiable_in(given)
        begin = clock(given)
        made = theirs(stage.module, *given)
        forward.append(clock(made) - begin)
        values.update(zip(stage.outputs, made, strict=False))
        outs = differentiable_in(made)
        weights = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
        tapes.append((outs, [*leaves, *weights]))
    behind: list[float] = []
    while tapes:  # from the last, and freed as in a step
        behind.append(backward(*tapes.pop()))
    return [Seconds(*times) for times in zip(forward, reversed(behind), strict=True)]


def backward(outs: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    if not outs or not wanted:
        return 0.0
    cotangents = [torch.ones_like(x) for x in outs]
    begin = clock(outs)
    torch.autograd.grad(outs, wanted, cotangents, allow_unused=True)
    return clock(outs) - begin


def clock(near: Any) -> float:
    """Seconds, when the device of these tensors has done what it was given."""
    if any(x.is_cuda for x in tensors_in(near)):
        torch.cuda.synchronize()
    return perf_counter()
