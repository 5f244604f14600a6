"""The loss of a micro-batch as its share of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from bppsa.errors import ArgumentError

LossFunction = Callable[..., Tensor]
LossWeight = Callable[[Any], float]


@dataclass(frozen=True)
class Share:
    """The loss of a micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, by
    loss_weight's share where that is given, a sum as it is."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]

    def __call__(self, output: Any, batch: int) -> Tensor:
        if not self.weights[batch]:  # a mean over nothing is no number, and it counts for nothing
            return next(x for x in tree_leaves(output) if isinstance(x, Tensor)).new_zeros(())
        loss = output if self.loss_fn is None else self.loss_fn(output, self.targets[batch])
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        return loss * self.weights[batch]


def counts(loss_fn: LossFunction | None, loss_weight: LossWeight | None, target: Any, rows: int) -> float:
    """What a micro-batch counts in the batch's loss, where that is a mean."""
    return float(rows if loss_weight is None else loss_weight(target))


def share(loss_fn: LossFunction | None, targets: Sequence[Any], counted: Sequence[float]) -> Share:
    if getattr(loss_fn, "reduction", "mean") == "sum":
        return Share(loss_fn, targets, [1.0] * len(counted))
    total = sum(counted)
    return Share(loss_fn, targets, [count / total if total else count for count in counted])
