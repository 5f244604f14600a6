"""What the micro-batches' losses count by, where the graph of the loss tells it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.distributed.steps.batches import Batch, is_batched
from bppsa.errors import ArgumentError, InputError, PartitionError, ScheduleError
from bppsa.fxpasses.partition.call.arguments import arguments_of
from bppsa.fxpasses.partition.call.refusals import WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.capture.since import since
from bppsa.fxpasses.partition.means.outputs import FEW
from bppsa.fxpasses.theirs import is_ours, theirs
from bppsa.stages import LossMeans, Stages

ROUNDING = 1e-5  # relative: what is counted may be in float32


def weights(
    means: LossMeans, batch: Batch, given: Mapping[int, Sequence[Any]], whole: Sequence[Any], share: Callable[..., Any]
) -> list[float]:
    """Of each micro-batch. given: by those that are here, the arguments of the loss's graph; whole: the batch's. share:
    gives what all ranks know of their micro-batches.

    Raises ScheduleError where the loss is no sum or mean over rows, InputError where its terms count otherwise.
    """
    if len(batch.sizes) == 1:
        return [1.0]
    if means.count is None:
        raise ScheduleError(
            f"{means.place or 'the model'}: from here on the loss is neither a mean nor a sum over rows, so the "
            f"micro-batches' losses do not make up the batch's; take microbatches=1, or return outputs and give a loss "
            f"of each row as loss_fn="
        )
    counted = share({b: counts(means, of) for b, of in given.items()})
    quantities = [[counted[b][i] for b in range(len(batch.sizes))] for i in range(len(means.sums))]
    totals = [sum(of) for of in quantities]
    if not all(means.sums):
        if len(given) < len(batch.sizes):
            raise ScheduleError(
                "data='local': the loss divides by a number that ranks' do not add up to, such as a sum with a least "
                "value; give loss_weight=, or let loss_fn= be a sum"
            )
        totals = [total if adds else n for total, adds, n in zip(totals, means.sums, counts(means, whole), strict=True)]
    quantities.append([float(size) for size in batch.sizes])  # ROWS is the last: -1
    totals.append(float(sum(batch.sizes)))
    ways = [[factor(way, quantities, totals, b) for b in range(len(batch.sizes))] for way in means.ways]
    for other in ways[1:]:
        if not all(math.isclose(x, y, rel_tol=ROUNDING, abs_tol=ROUNDING) for x, y in zip(ways[0], other, strict=True)):
            raise InputError(
                "the loss has terms that count otherwise in this batch's micro-batches, such as a mean over labels of "
                "which some are ignored and one over all rows; take microbatches=1, or divide sums yourself"
            )
    return ways[0]


def factor(
    way: Sequence[tuple[int, int]], quantities: Sequence[Sequence[float]], totals: Sequence[float], b: int
) -> float:
    """Of a batch with nothing to count the first micro-batch is all: PyTorch's mean of nothing.

    Raises InputError where the loss is multiplied by a count, which is zero here: what the loss was is lost.
    """
    if not all(totals[i] for i, _ in way):
        return float(b == 0)
    if not all(quantities[i][b] for i, power in way if power > 0):
        return 0.0
    if not all(quantities[i][b] for i, _ in way):
        raise InputError(
            f"the loss is multiplied by a count, which is zero in micro-batch {b} and not in the whole batch; take "
            f"microbatches=1, or multiply each row's loss"
        )
    return math.prod((quantities[i][b] / totals[i]) ** power for i, power in way)


@torch.no_grad()
def counts(means: LossMeans, arguments: Sequence[Any]) -> list[float]:
    assert means.count is not None
    return [float(quantity) for quantity in means.count(*arguments)]


@dataclass(frozen=True)
class TracedLoss:
    """loss_fn as it was when it was traced. means: None where it is not known to be a sum or a mean; target: of each
    leaf that the graph takes, dtype and shape; sizes: the check of an output and a target."""

    means: LossMeans | None = None
    target: tuple[tuple[torch.dtype, Sequence[Any]] | None, ...] = ()
    changed: Callable[[], str] = lambda: ""
    sizes: Callable[..., None] | None = None

    def of(self, target: Any) -> LossMeans | None:
        """None where the graph was made for other targets."""
        leaves = tree_leaves(target)
        pairs = zip(leaves, self.target, strict=False)
        known = len(leaves) == len(self.target) and all(like is None or fits(x, *like) for x, like in pairs)
        return self.means if known else None


def fits(x: Any, dtype: torch.dtype, shape: Sequence[Any]) -> bool:
    if not isinstance(x, Tensor) or x.dtype != dtype or x.dim() != len(shape):
        return False
    return all(not isinstance(n, int) or n == size for n, size in zip(shape, x.shape, strict=True))


class LossOf(nn.Module):
    """A loss function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, output: Any, target: Any) -> Any:
        return self.function(output, target)


def traced(
    function: Callable[..., Any], stages: Stages, target: Any, rows: int, loss: Callable[[Any], Any]
) -> TracedLoss:
    """Of a function of (output, target), for a few rows of the example's output and of this target."""
    from bppsa.fxpasses.partition.capture.captured import captured  # imports sympy, as the next does
    from bppsa.fxpasses.partition.means.weights import means_of

    if not stages.few or rows < 2:
        return TracedLoss()
    count = min(FEW, rows, *(len(x) for x in stages.few if isinstance(x, Tensor) and x.dim()))
    output = stages.assemble([x[:count] if isinstance(x, Tensor) and x.dim() else x for x in stages.few])
    short = tree_map_only(Tensor, lambda x: x[:count] if is_batched(x, rows) else x, target)
    module = function if isinstance(function, nn.Module) else LossOf(function)
    try:
        arguments = arguments_of(module, (output, short), {})
        graph = theirs(captured, module, arguments)
        by_rows = [is_batched(x, count) for x in tree_leaves(list(arguments.examples))]
        means = means_of(module, graph, arguments.examples, by_rows, loss, made=1)
    except (PartitionError, ArgumentError):
        return TracedLoss()
    except WHAT_FORWARDS_RAISE as error:  # an output of this example may not go with this target
        if is_ours(error):
            raise
        return TracedLoss()
    known = means is not None and means.count is not None
    leaves = tree_leaves(short)
    shapes = graph.sizes.shapes[len(graph.sizes.shapes) - len(leaves) :]
    likes = tuple(None if of is None else (x.dtype, of) for x, of in zip(leaves, shapes, strict=True))
    return TracedLoss(means if known else None, likes, since(module, graph.looked_up), graph.sizes)
