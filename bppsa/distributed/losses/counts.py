"""The loss of a micro-batch as its share of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import loss as losses_of_torch
from torch.utils._pytree import tree_leaves

from bppsa.distributed.losses.metrics import split_loss
from bppsa.distributed.losses.reads import NameOf, check_reads, edges, unnamed
from bppsa.distributed.losses.trying import LossTrial
from bppsa.errors import ArgumentError, PartitionError
from bppsa.fxpasses.partition.capture.whole import HOOKS
from bppsa.fxpasses.partition.means.classes import of_classes
from bppsa.fxpasses.partition.means.outputs import own_loss
from bppsa.fxpasses.theirs import theirs

LossFunction = Callable[..., Any]  # a tensor [], or (loss, metrics)
LossWeight = Callable[[Any], float]


UNREAD = object()  # in the place of a target: the loss does not read this micro-batch's output


@dataclass(frozen=True)
class Share:
    """The loss of a micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, by
    loss_weight's share where that is given, a sum as it is."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]
    trial: LossTrial | None = None  # whether the loss is the mean that it is taken for
    sizes: Callable[..., None] | None = None  # the check of what a traced loss takes for granted
    names: NameOf = unnamed  # of Parameters

    def __call__(self, output: Any, batch: int) -> tuple[Tensor, Any]:
        """The loss [], and what loss_fn gives beside it."""
        target = self.targets[batch]
        if not self.weights[batch]:  # a mean over nothing is no number, and it counts for nothing
            nothing = next(x for x in tree_leaves(output) if isinstance(x, Tensor)).new_zeros(())
            if self.loss_fn is None or target is UNREAD:
                return nothing, None
            with torch.no_grad():
                return nothing, split_loss(theirs(self.loss_fn, output, target))[1]
        if self.sizes is not None:
            check_sizes(self.sizes, output, target)
        if self.loss_fn is None:
            loss, metrics = own_loss(output), None
        else:
            ends = edges(output)
            loss, metrics = split_loss(theirs(self.loss_fn, output, target))
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        if self.loss_fn is not None:
            check_reads(loss, ends, self.names)
        if self.trial is not None:
            self.trial(batch, loss, output, target)
        return loss * self.weights[batch], metrics


def counts(loss_fn: LossFunction | None, loss_weight: LossWeight | None, target: Any, rows: int) -> float:
    """What a micro-batch counts in the batch's loss, where that is a mean."""
    if loss_weight is not None:
        return float(theirs(loss_weight, target))
    numbers = isinstance(target, Tensor) and not target.is_floating_point()  # and not probabilities
    if numbers and is_known(loss_fn):
        return float(of_classes(target, option(loss_fn, "weight", None), option(loss_fn, "ignore_index", -100)))
    return float(rows)


MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)  # whose mean leaves rows out, or weighs them
FUNCTIONS = (F.cross_entropy, F.nll_loss)


def is_known(loss_fn: LossFunction | None) -> bool:
    """Whether it is one of PyTorch's means over classes, as it is or with keywords bound."""
    return is_torchs(loss_fn) and (type(loss_fn) in MODULES or function_of(loss_fn) in FUNCTIONS)


def is_torchs(loss_fn: LossFunction | None) -> bool:
    """Whether it is a loss of PyTorch's own, and does what that does: no subclass, and nothing around it."""
    if isinstance(loss_fn, nn.Module):
        own = vars(loss_fn)
        plain = "forward" not in own and not any(own.get(name) for name in HOOKS)
        return plain and getattr(losses_of_torch, type(loss_fn).__name__, None) is type(loss_fn)
    function = function_of(loss_fn)
    return function is not None and getattr(F, getattr(function, "__name__", ""), None) is function


def function_of(loss_fn: LossFunction | None) -> Any:
    """A function, or what functools.partial has bound keywords of."""
    return loss_fn.func if isinstance(loss_fn, partial) and not loss_fn.args else loss_fn


def option(loss_fn: LossFunction | None, name: str, default: Any) -> Any:
    """The option of a module, or of a function with keywords bound by functools.partial."""
    return getattr(loss_fn, "keywords", {}).get(name, getattr(loss_fn, name, default))


def is_sum(loss_fn: LossFunction | None) -> bool:
    return says_sum(loss_fn) and is_torchs(loss_fn)


def says_sum(loss_fn: LossFunction | None) -> bool:
    """By an attribute or a keyword, which of a loss that is not PyTorch's own is tried."""
    return bool(option(loss_fn, "reduction", "mean") == "sum")


def check_sizes(sizes: Callable[..., None], output: Any, target: Any) -> None:
    """Raises ArgumentError where the loss decides by sizes, and decided otherwise when it was traced."""
    try:
        sizes(output, target)
    except PartitionError as error:
        raise ArgumentError(
            f"what loss_fn counts is read from a run of it with other sizes: {error}; or give loss_weight=, what a "
            f"micro-batch counts"
        ) from error
