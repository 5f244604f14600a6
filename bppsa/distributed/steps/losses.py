"""The loss of a micro-batch as its share of the whole batch's."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from bppsa.distributed.steps.batches import is_batched, parts, rows_in
from bppsa.distributed.steps.metrics import split_loss
from bppsa.errors import ArgumentError, PartitionError
from bppsa.fxpasses.partition.means.classes import of_classes
from bppsa.fxpasses.partition.means.outputs import own_loss
from bppsa.fxpasses.theirs import theirs

LossFunction = Callable[..., Any]  # a tensor [], or (loss, metrics)
LossWeight = Callable[[Any], float]


@dataclass(frozen=True)
class Share:
    """The loss of a micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, by
    loss_weight's share where that is given, a sum as it is."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]
    tries: bool = False  # whether the loss is tried: is it the mean that it is taken for?
    sizes: Callable[..., None] | None = None  # the check of what a traced loss takes for granted
    of_nothing: bool = False  # whether loss_fn is called where a micro-batch counts nothing, for its metrics

    def __call__(self, output: Any, batch: int) -> tuple[Tensor, Any]:
        """The loss [], and what loss_fn gives beside it."""
        if not self.weights[batch]:  # a mean over nothing is no number, and it counts for nothing
            nothing = next(x for x in tree_leaves(output) if isinstance(x, Tensor)).new_zeros(())
            if self.loss_fn is None or not self.of_nothing:
                return nothing, None
            with torch.no_grad():
                return nothing, split_loss(theirs(self.loss_fn, output, self.targets[batch]))[1]
        if self.sizes is not None:
            check_sizes(self.sizes, output, self.targets[batch])
        if self.loss_fn is None:
            loss, metrics = own_loss(output), None
        else:
            loss, metrics = split_loss(theirs(self.loss_fn, output, self.targets[batch]))
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        if self.tries and self.loss_fn is not None:
            check_mean(self.loss_fn, loss.detach(), output, self.targets[batch])
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
PYTORCHS = "torch.nn.modules.loss", "torch.nn.functional"


def unbound(loss_fn: LossFunction | None) -> Any:
    """Without keywords that functools.partial binds."""
    return loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn


def is_known(loss_fn: LossFunction | None) -> bool:
    """Whether it is one of PyTorch's means over classes, as it is or with keywords bound. A class that is derived from
    one may compute anything."""
    function = unbound(loss_fn)
    return type(function) in MODULES or function in FUNCTIONS


def option(loss_fn: LossFunction | None, name: str, default: Any) -> Any:
    """Of a module, or of a function with keywords bound by functools.partial."""
    return getattr(loss_fn, "keywords", {}).get(name, getattr(loss_fn, name, default))


def is_sum(loss_fn: LossFunction | None) -> bool:
    """Whether it is one of PyTorch's losses, and adds up; what `reduction` means to others nobody knows."""
    function = unbound(loss_fn)
    where = function.__module__ if isinstance(function, types.FunctionType) else type(function).__module__
    return where in PYTORCHS and option(loss_fn, "reduction", "mean") == "sum"


def check_sizes(sizes: Callable[..., None], output: Any, target: Any) -> None:
    """Raises ArgumentError where the loss decides by sizes, and decided otherwise when it was traced."""
    try:
        sizes(output, target)
    except PartitionError as error:
        raise ArgumentError(
            f"what loss_fn counts is read from a run of it with other sizes: {error}; or give loss_weight=, what a "
            f"micro-batch counts"
        ) from error


@torch.no_grad()
def check_mean(loss_fn: LossFunction, loss: Tensor, output: Any, target: Any) -> None:
    """Raises ArgumentError where the loss [] of a micro-batch is not the mean of its halves' losses."""
    rows = rows_in(output)
    if rows < 2:
        return
    outputs, targets = in_halves(output, rows), in_halves(target, rows)
    sizes = (rows + 1) // 2, rows // 2
    weights = [counts(loss_fn, None, half, size) for half, size in zip(targets, sizes, strict=True)]
    if not all(weights):
        return
    losses = [float(split_loss(theirs(loss_fn, out, half))[0]) for out, half in zip(outputs, targets, strict=True)]
    mean = sum(weight * of_half for weight, of_half in zip(weights, losses, strict=True)) / sum(weights)
    whole, rounding = float(loss), torch.finfo(loss.dtype).eps ** 0.5
    alike = math.isfinite(mean) and abs(whole - mean) <= rounding * max(abs(whole), abs(mean))
    if math.isfinite(whole) and not alike:
        raise ArgumentError(
            f"loss_fn gives {whole:.6g} for {rows} rows, and {losses[0]:.6g} and {losses[1]:.6g} for their halves: it "
            f"is no mean over rows, and the micro-batches' losses do not make the batch's; give it reduction='sum' "
            f"where it is a sum, or loss_weight=, what a micro-batch counts, such as len, or of labels that may be -1 "
            f"lambda target: (target >= 0).sum()"
        )


def in_halves(value: Any, rows: int) -> list[Any]:
    return parts(value, [is_batched(leaf, rows) for leaf in tree_leaves(value)], 2)


def share(loss_fn: LossFunction | None, targets: Sequence[Any], counted: Sequence[float], tries: bool = False) -> Share:
    if is_sum(loss_fn):
        return Share(loss_fn, targets, [1.0] * len(counted), of_nothing=True)
    total = sum(counted)
    weights = [count / total if total else count for count in counted]
    return Share(loss_fn, targets, weights, tries, of_nothing=True)
