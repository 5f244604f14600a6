"""The loss of a micro-batch as its share of the whole batch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from bppsa.distributed.steps.batches import is_batched, parts, rows_in
from bppsa.errors import ArgumentError
from bppsa.fxpasses.theirs import theirs

LossFunction = Callable[..., Tensor]
LossWeight = Callable[[Any], float]


@dataclass(frozen=True)
class Share:
    """The loss of a micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, by
    loss_weight's share where that is given, a sum as it is."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]
    tries: bool = False  # whether the loss is tried: is it the mean that it is taken for?

    def __call__(self, output: Any, batch: int) -> Tensor:
        if not self.weights[batch]:  # a mean over nothing is no number, and it counts for nothing
            return next(x for x in tree_leaves(output) if isinstance(x, Tensor)).new_zeros(())
        loss = own_loss(output) if self.loss_fn is None else theirs(self.loss_fn, output, self.targets[batch])
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        if self.tries and self.loss_fn is not None:
            check_mean(self.loss_fn, loss.detach(), output, self.targets[batch])
        return loss * self.weights[batch]


def own_loss(output: Any) -> Any:
    """What the model says is its loss: all that it returns, or a field or key of that name."""
    if isinstance(output, Mapping):
        return output.get("loss", output)
    return output if isinstance(output, Tensor) else getattr(output, "loss", output)


def counts(loss_fn: LossFunction | None, loss_weight: LossWeight | None, target: Any, rows: int) -> float:
    """What a micro-batch counts in the batch's loss, where that is a mean."""
    if loss_weight is not None:
        return float(theirs(loss_weight, target))
    function = getattr(loss_fn, "func", loss_fn)  # of a functools.partial
    numbers = isinstance(target, Tensor) and not target.is_floating_point()  # and not probabilities
    if numbers and (isinstance(function, MODULES) or function in FUNCTIONS):
        return weight_of(target, option(loss_fn, "weight", None), option(loss_fn, "ignore_index", -100))
    return float(rows)


MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)  # whose mean leaves rows out, or weighs them
FUNCTIONS = (F.cross_entropy, F.nll_loss)


def weight_of(target: Tensor, weight: Tensor | None, ignored: int) -> float:
    """What PyTorch divides a mean over classes by. target: of any shape; weight: [classes]."""
    kept = target[target != ignored]
    return float(kept.numel() if weight is None else weight.to(kept.device)[kept].sum())


def option(loss_fn: LossFunction | None, name: str, default: Any) -> Any:
    """Of a module, or of a function with keywords bound by functools.partial."""
    return getattr(loss_fn, "keywords", {}).get(name, getattr(loss_fn, name, default))


def is_sum(loss_fn: LossFunction | None) -> bool:
    return bool(option(loss_fn, "reduction", "mean") == "sum")


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
    losses = [float(theirs(loss_fn, out, half)) for out, half in zip(outputs, targets, strict=True)]
    mean = sum(weight * of_half for weight, of_half in zip(weights, losses, strict=True)) / sum(weights)
    whole, rounding = float(loss), torch.finfo(loss.dtype).eps ** 0.5
    if math.isfinite(whole) and math.isfinite(mean) and abs(whole - mean) > rounding * max(abs(whole), abs(mean)):
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
        return Share(loss_fn, targets, [1.0] * len(counted))
    total = sum(counted)
    return Share(loss_fn, targets, [count / total if total else count for count in counted], tries)
