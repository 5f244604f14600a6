"""A loss over a count of nothing: it is 0 / 0, and its numerator may be no number either, which must not be lost.

In the whole batch the rows of such a micro-batch are divided by what others count. They add zero to the loss, or NaN
where an infinite number or a NaN is multiplied by their zero; and zero times what is not finite flows to the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bppsa.common.graph import tensors_in
from bppsa.runtime.worker.modes import Harmless

DIVISIONS = frozenset(
    ("div", "div_", "divide", "divide_", "true_divide", "true_divide_", "__truediv__", "__itruediv__")
)
OVER_CLASSES = frozenset(("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"))
MEAN, SUM = (1, "mean"), {1: 2, "mean": "sum"}  # as ATen numbers reductions, and as torch.nn.functional names them
GIVEN = frozenset(
    ("full", "full_like", "new_full", "tensor", "new_tensor", "scalar_tensor", "fill_", "lift_fresh_copy")
)
LOGITS = ("input", "self")  # the first argument, as torch.nn.functional and ATen name it
PLACE = 3  # of ATen's argument `reduction`


class OverNothing(Harmless, TorchFunctionMode):
    """Within the block what is divided by nothing is left as it is, so that the loss is its numerator; parts that run
    without gradients inside a block with them are no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients = torch.is_grad_enabled()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled() != self.gradients:
            return func(*args, **kwargs)
        name = getattr(func, "overloadpacket", func).__name__
        if name in DIVISIONS and len(args) > 1 and is_nothing(args[1]):
            return func(args[0], args[1] + 1, *args[2:], **kwargs)
        if name in OVER_CLASSES and counts_nothing(func, args, kwargs):
            args, kwargs = summed(args, kwargs)
        made = func(*args, **kwargs)
        computed = is_scalar(made) and name not in GIVEN and not made.isfinite()
        return of_nothing(made, args, kwargs) if computed else made


def is_nothing(divisor: Any) -> bool:
    """Whether it is a count, which no gradient goes to, and zero."""
    if isinstance(divisor, Tensor):
        return divisor.numel() == 1 and not divisor.requires_grad and not divisor.item()
    return not divisor


def counts_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a mean over classes leaves out all targets: it is no number then, whatever it is given."""
    name = next((name for name in LOGITS if name in kwargs), "")
    zeros = torch.zeros_like(kwargs[name] if name else args[0])
    with torch.no_grad():
        made = func(*args, **{**kwargs, name: zeros}) if name else func(zeros, *args[1:], **kwargs)
    return is_scalar(made) and bool(made.isnan())


def summed(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The arguments of a mean over classes as those of a sum: its count is within the op."""
    if len(args) > PLACE and args[PLACE] in MEAN:
        return (*args[:PLACE], SUM[args[PLACE]], *args[PLACE + 1 :]), kwargs
    reduction = kwargs.get("reduction", MEAN[0])
    return args, {**kwargs, "reduction": SUM.get(reduction, reduction)} if len(args) <= PLACE else kwargs


def is_scalar(made: Any) -> bool:
    return isinstance(made, Tensor) and made.is_floating_point() and not made.dim()


def of_nothing(made: Tensor, args: Any, kwargs: Any) -> Tensor:
    """A number that is not finite though all that it is made of is: a mean of no elements is zero then, through which
    gradients flow, and one over a count is one."""
    given = tensors_in((args, kwargs))
    wanting = [x for x in given if x.requires_grad]
    if any(x is made for x in given) or not all(bool(x.isfinite().all()) for x in given):
        return made
    if made.isnan():
        return sum(((x * 0).sum().to(made.dtype) for x in wanting), made.new_zeros(()))
    return made if wanting or not given else torch.ones_like(made)
