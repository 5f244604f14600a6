"""How the losses of a batch's micro-batches are weighted: by what is known, traced or tried of the loss function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_leaves

from bppsa.common.stages import Stages
from bppsa.distributed.batch.batches import Batch, is_batched, parts
from bppsa.distributed.batch.whole import check_target
from bppsa.distributed.losses.counts import LossFunction, LossWeight, counts, is_known, is_sum, is_torchs, says_sum
from bppsa.distributed.losses.reads import NameOf, check_wants
from bppsa.distributed.losses.tracing import TracedLoss, Traces
from bppsa.distributed.losses.trying import ASKED, LossTrial
from bppsa.distributed.losses.weighing import OF_FUNCTIONS, OWN, weights
from bppsa.distributed.losses.weighted import WeightedLoss
from bppsa.errors import ArgumentError

UNTRACED = "loss_fn cannot be traced"
UNSEEN = "loss_fn calls an autograd.Function or an op of its own, and no graph shows what that does"
Gathered = Callable[[Mapping[int, Any]], dict[int, Any]]  # a value of each micro-batch that is here -> of all


class MicrobatchLosses:
    """Weighs the losses of micro-batches in all calls of one model's stages."""

    def __init__(
        self, loss_fn: LossFunction | None, loss_weight: LossWeight | None, stages: Stages, names: NameOf
    ) -> None:
        """loss_fn: None where the model returns its loss. names: of Parameters."""
        self.loss_fn, self.loss_weight = loss_fn, loss_weight
        self.stages, self.names = stages, names
        self.traces: Traces | None = None
        self.tried = False  # whether the loss has been seen to be the mean that it is taken for

    def of(self, batch: Batch, target: Any, gathered: Gathered, together: Callable[[], bool]) -> WeightedLoss:
        """The losses of one batch. together: whether those of all micro-batches come about in one process.

        Raises InputError where the target has not the batch's rows, ArgumentError where nothing tells what a
        micro-batch counts.
        """
        loss_fn, order = self.loss_fn, range(len(batch.sizes))
        if loss_fn is not None:
            check_wants(loss_fn, target)
        if len(batch.mine) > 1:
            check_target(target, batch.rows)
        batched = [is_batched(leaf, batch.rows) for leaf in tree_leaves(target)]
        targets = dict(zip(batch.mine, parts(target, batched, len(batch.mine)), strict=True))
        found = WeightedLoss(loss_fn, [targets.get(b) for b in order], [1.0] * len(order), names=self.names)
        if len(order) == 1:
            return found
        traced = self.read(target, batch, gathered)
        if traced.means is not None:
            given = {b: batch.call.arguments[b] if loss_fn is None else (None, targets[b]) for b in batch.mine}
            whole, mend = (batch.values, OWN) if loss_fn is None else ((None, target), OF_FUNCTIONS)
            shares = weights(traced.means, batch, given, whole, gathered, mend)
            trial = None if traced.seen else self.trial(shares.weights, batch.sizes, together, UNSEEN)
            found = replace(found, weights=shares.weights, terms=shares.terms, is_number=shares.is_number)
            return replace(found, apart=traced.apart, sizes=traced.sizes, trial=trial, counted=True)
        if is_sum(loss_fn):
            return found
        count = gathered({b: counts(loss_fn, self.loss_weight, targets[b], batch.sizes[b]) for b in batch.mine})
        by_batch = [count[b] for b in order]
        total = sum(by_batch)
        parts_of_all = [each / total if total else each for each in by_batch]
        if not self.is_tried():
            return replace(found, weights=parts_of_all, counted=self.loss_weight is None)
        found = found if says_sum(loss_fn) else replace(found, weights=parts_of_all, counted=True)
        return replace(found, trial=self.trial(found.weights, batch.sizes, together, UNTRACED))

    def read(self, target: Any, batch: Batch, gathered: Gathered) -> TracedLoss:
        """What the micro-batches' losses count by, as the loss's graph tells it; no means: by rows, or as is known."""
        if self.loss_fn is None:
            return TracedLoss(self.stages.means)
        if self.loss_weight is not None or is_known(self.loss_fn):
            return TracedLoss()
        self.traces = self.traces or Traces(self.loss_fn, self.stages)
        found = self.traces.of(target, batch.values, sum(batch.sizes))
        means = found.means
        ways = None if means is None else (means.count is None, means.sums, means.ways, means.terms)
        of_all = list(gathered(dict.fromkeys(batch.mine, ways)).values())  # ranks may have targets of unlike dtypes
        return found if all(way == of_all[0] for way in of_all) else TracedLoss()

    def is_tried(self) -> bool:
        """Whether a loss that was not traced is taken for a mean over rows or classes, or for a sum, that nobody knows
        it to be."""
        known = self.loss_fn is None or self.loss_weight is not None
        return not (known or (is_torchs(self.loss_fn) and self.tried))

    def trial(
        self, counted: Sequence[float], sizes: Sequence[int], together: Callable[[], bool], why: str
    ) -> LossTrial | None:
        """Returns the trial of what the loss is taken for; None where it cannot be tried, and need not be.

        Raises ArgumentError where no worker would have all micro-batches to try it with.
        """
        loss_fn = self.loss_fn
        if loss_fn is None:
            return None
        if not together():
            if is_torchs(loss_fn):  # PyTorch's other means are over rows
                return None
            raise ArgumentError(
                f"{why}, and the micro-batches' losses are on several ranks, so that none can try what it counts; "
                f"{ASKED}"
            )
        self.tried = True
        return LossTrial(loss_fn, counted, sizes, says_sum(loss_fn))
