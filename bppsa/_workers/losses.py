"""The loss of a micro-batch as its share of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
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
    if loss_weight is not None:
        return float(loss_weight(target))
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


def share(loss_fn: LossFunction | None, targets: Sequence[Any], counted: Sequence[float]) -> Share:
    if option(loss_fn, "reduction", "mean") == "sum":
        return Share(loss_fn, targets, [1.0] * len(counted))
    total = sum(counted)
    return Share(loss_fn, targets, [count / total if total else count for count in counted])
