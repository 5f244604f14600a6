"""The losses of micro-batches, weighted so that their sum is the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.common.graph import tensors_in
from bppsa.common.terms import check_is_nothing, factored
from bppsa.decisions import warn_once
from bppsa.distributed.losses.counts import LossFunction
from bppsa.distributed.losses.metrics import split_loss
from bppsa.distributed.losses.reads import NameOf, check_reads, edges, unnamed
from bppsa.distributed.losses.tracing import LossByTerms
from bppsa.distributed.losses.trying import LossTrial, as_given
from bppsa.errors import ArgumentError, PartitionError
from bppsa.fxpasses.partition.losses.outputs import own_loss, stated_loss
from bppsa.fxpasses.theirs import theirs
from bppsa.runtime.worker.over_nothing import OverNothing

UNREAD = object()  # in the place of a target: the loss does not read this micro-batch's output


@dataclass(frozen=True)
class WeightedLoss:
    """The loss of each micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, or by what
    loss_weight says of all that it says, and a sum by one. Where its terms count in unlike ways each has a factor, and
    the graph of loss_fn runs in its place."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]
    trial: LossTrial | None = None  # whether the loss is the mean that it is taken for
    sizes: Callable[..., None] | None = None  # the check of what a traced loss takes for granted
    names: NameOf = unnamed  # of Parameters
    terms: Sequence[Sequence[float]] = ()  # factors of each micro-batch's terms
    is_number: bool = True  # whether each term has a count in the batch
    apart: LossByTerms | None = None  # loss_fn, by a graph in which terms have factors
    counted: bool = False  # whether the weights are of what the loss divides by, and not what somebody says

    def __call__(self, output: Any, batch: int) -> tuple[Tensor, Any]:
        """The loss [], and what loss_fn gives beside it."""
        target = self.targets[batch]
        if not self.weights[batch]:
            return self.nothing(output, target, batch)
        if self.sizes is not None:
            check_sizes(self.sizes, output, target)
        if self.loss_fn is None:
            loss, metrics, given = self.own(output), None, None
        else:
            ends = edges(output)
            given = None if self.trial is None else as_given(output)
            loss, metrics = self.computed(output, target, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        if self.loss_fn is not None:
            check_reads(loss, ends, self.names)
        if self.trial is not None:
            self.trial(batch, loss, given, target)
        return loss * self.weights[batch], metrics

    def own(self, output: Any) -> Any:
        """That of a model which returns its loss."""
        loss = own_loss(output)
        if loss is not stated_loss(output):
            warn_once("the only number in the tuple that the model returns is taken for its loss; give loss_fn= if not")
        return loss

    def computed(self, output: Any, target: Any, batch: int) -> tuple[Any, Any]:
        """What loss_fn gives, by itself or by its graph."""
        assert self.loss_fn is not None
        if self.apart is None or not self.terms:
            return split_loss(theirs(self.loss_fn, output, target))
        metrics = self.metrics(output, target) if self.apart.has_metrics else None
        with self.terms_of(batch):
            return theirs(self.apart, output, target), metrics

    @torch.no_grad()
    def metrics(self, output: Any, target: Any) -> Any:
        """What loss_fn gives beside the loss, as it gives it for the micro-batch alone."""
        assert self.loss_fn is not None
        return split_loss(theirs(self.loss_fn, as_given(output), target))[1]

    def around(self, batch: int) -> AbstractContextManager[Any]:
        """What a model that returns its loss is to run in, forward and backward."""
        return nullcontext() if self.loss_fn is not None else self.terms_of(batch)

    @contextmanager
    def terms_of(self, batch: int) -> Iterator[None]:
        factors = self.terms[batch] if self.terms else ()
        counts = (self.weights[batch] and all(factors)) or not self.is_number
        with factored(batch, factors), nullcontext() if counts else OverNothing():
            yield

    def nothing(self, output: Any, target: Any, batch: int) -> tuple[Tensor, Any]:
        """The loss of a micro-batch that counts for nothing, such as a mean over nothing: zero, through which gradients
        flow as they do in the whole batch, or NaN where it is not finite."""
        if target is UNREAD:
            return tensors_in(output)[0].new_zeros(()), None
        if self.loss_fn is None:
            loss, metrics = self.own(output), None
        else:
            metrics = self.metrics(output, target)
            with OverNothing():
                loss, _ = split_loss(theirs(self.loss_fn, output, target))
        if self.counted:
            check_is_nothing(float(loss.detach()), batch)
        return loss * 0, metrics


def check_sizes(sizes: Callable[..., None], output: Any, target: Any) -> None:
    """Raises ArgumentError where the loss decides by sizes, and decided otherwise when it was traced."""
    try:
        sizes(output, target)
    except PartitionError as error:
        raise ArgumentError(
            f"what loss_fn counts is read from a run of it with other sizes: {error}; or give loss_weight=, what a "
            f"micro-batch counts"
        ) from error
