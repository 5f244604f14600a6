"""What the micro-batches' losses count by, where the graph of the loss tells it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bppsa.common.stages import LossMeans
from bppsa.distributed.batch.batches import Batch
from bppsa.errors import InputError, ScheduleError


@dataclass(frozen=True)
class Shares:
    """What makes the losses of micro-batches up to the batch's: each is multiplied by its weight, and before that the
    terms of each by its factors, where these differ."""

    weights: Sequence[float]
    terms: Sequence[Sequence[float]] = ()  # of each micro-batch, by number of the term
    is_number: bool = True  # whether each term has a count in the batch: PyTorch's mean of nothing is no number


OWN = "return outputs and give a loss of each row as loss_fn="
OF_FUNCTIONS = "where it is a mean all the same give loss_weight=, what a micro-batch counts"
ROUNDING = 1e-5  # relative: what is counted may be in float32, and no whole number
EXACT, WHOLE = 1e-12, 2**24  # relative: of whole numbers up to the largest that float32 has


def weights(
    means: LossMeans,
    batch: Batch,
    given: Mapping[int, Sequence[Any]],
    whole: Sequence[Any],
    all_gather: Callable[..., Any],
    mend: str,
) -> Shares:
    """The shares of the micro-batches. given: by those that are here, the arguments of the loss's graph; whole: the
    batch's. all_gather: gives what all ranks know of their micro-batches. mend: of a loss that is no mean.

    Raises ScheduleError where the loss is no sum or mean over rows, InputError where its terms count otherwise.
    """
    if len(batch.sizes) == 1:
        return Shares([1.0])
    if means.why:
        raise ScheduleError(f"{means.place or 'the loss'}: {means.why}")
    if means.count is None:
        raise ScheduleError(
            f"{means.place or 'the loss'}: from here on the loss is neither a mean nor a sum over rows, so the "
            f"micro-batches' losses do not make up the batch's; take microbatches=1, or {mend}"
        )
    counted = all_gather({b: counts(means, of) for b, of in given.items()})
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
    rounding = EXACT if all(is_exact(x) for of in (totals, *quantities) for x in of) else ROUNDING
    ways = [[factor(way, quantities, totals, b) for b in range(len(batch.sizes))] for way in means.ways]
    pairs = [pair for way in ways[1:] for pair in zip(ways[0], way, strict=True)]
    if all(math.isclose(*pair, rel_tol=rounding, abs_tol=rounding) for pair in pairs):
        return Shares(ways[0])
    if means.terms:
        terms = [[factor(way, quantities, totals, b) for way in means.terms] for b in range(len(batch.sizes))]
        is_number = all(totals[i] for way in means.terms for i, _ in way)
        return Shares([1.0] * len(batch.sizes), terms, is_number)
    raise InputError(
        f"{means.place and f'{means.place}: '}the loss has terms that count otherwise in this batch's micro-batches, "
        "such as a mean over labels of which some are ignored and one over all rows, and they cannot be told apart; "
        "take microbatches=1, or divide sums yourself"
    )


def is_exact(count: float) -> bool:
    return count.is_integer() and abs(count) <= WHOLE


def factor(
    way: Sequence[tuple[int, int]], quantities: Sequence[Sequence[float]], totals: Sequence[float], b: int
) -> float:
    """The weight of micro-batch b. Where a batch has nothing to count the first one is all: PyTorch's mean of nothing.

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
