"""What a micro-batch counts in the batch's loss, by loss_weight= or by what is known of PyTorch's own losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import loss as losses_of_torch

from bppsa.fxpasses.partition.capture.whole import HOOKS
from bppsa.fxpasses.partition.means.classes import of_classes
from bppsa.fxpasses.theirs import theirs

LossFunction = Callable[..., Any]  # a tensor [], or (loss, metrics)
LossWeight = Callable[[Any], float]


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
    """Whether an attribute or a keyword says so, which is tried of a loss that is not PyTorch's own."""
    return bool(option(loss_fn, "reduction", "mean") == "sum")
