"""A loss over a count of nothing: it is 0 / 0, and its numerator may be no number either, which must not be lost.

In the whole batch the rows of such a micro-batch are divided by what others count. They add zero to the loss, or NaN
where an infinite number or a NaN is multiplied by their zero; and zero times what is not finite flows to the weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa.common.graph import tensors_in
from bppsa.runtime.worker.modes import Harmless

aten = torch.ops.aten


class Divisor(NamedTuple):
    """Which argument of a call divides. negative: only where the argument behind it, an exponent, is below zero."""

    place: int
    name: str
    negative: bool = False


DIVISORS: Mapping[Any, Divisor] = {
    **dict.fromkeys((torch.div, Tensor.div, Tensor.div_, aten.div, aten.div_), Divisor(1, "other")),
    **dict.fromkeys((torch.divide, Tensor.divide, Tensor.divide_, aten.divide, aten.divide_), Divisor(1, "other")),
    **dict.fromkeys((torch.true_divide, aten.true_divide, aten.true_divide_), Divisor(1, "other")),
    **dict.fromkeys((Tensor.true_divide, Tensor.true_divide_), Divisor(1, "other")),
    **dict.fromkeys((Tensor.__truediv__, Tensor.__itruediv__), Divisor(1, "other")),
    **dict.fromkeys((Tensor.__rtruediv__, Tensor.__rdiv__), Divisor(0, "self")),
    **dict.fromkeys((torch.reciprocal, Tensor.reciprocal, aten.reciprocal), Divisor(0, "input")),
    **dict.fromkeys((torch.rsqrt, Tensor.rsqrt, aten.rsqrt), Divisor(0, "input")),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__, aten.pow), Divisor(0, "input", negative=True)),
}
OVER_CLASSES = frozenset(
    (
        *(F.cross_entropy, F.nll_loss, torch._C._nn.cross_entropy_loss, torch._C._nn.nll_loss_nd),
        *(aten.cross_entropy_loss, aten.nll_loss, aten.nll_loss_nd, aten.nll_loss2d),
    )
)
BACKWARDS = frozenset((torch.autograd.grad, Tensor.backward, torch.autograd.backward))
MEAN, SUM = (1, "mean"), {1: 2, "mean": "sum"}  # as ATen numbers reductions, and as torch.nn.functional names them
PLACE = 3  # of ATen's argument `reduction`
Call = tuple[Any, Mapping[str, Any]]  # args, kwargs


class OverNothing(Harmless, TorchFunctionMode):
    """Within the block every op gives what it always gives. Beside what is divided by a count, and what is made of it,
    the mode keeps another tensor: what it would be had a division by zero been left out. `beside` gives that."""

    def __init__(self, row: bool = False) -> None:
        """row: whether a tensor of one element may be a row's number; then only one without dimensions is a count."""
        super().__init__()
        self.row = row
        self.known: dict[int, tuple[Tensor, Tensor]] = {}  # by id: what was made, which so lives on, and the other

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors, given = tensors_in((args, kwargs)), self.beside((args, kwargs))
        if func in BACKWARDS:  # a graph may serve one of them alone
            return func(*given[0], **given[1])
        other = undivided(func, given[0], given[1], self.row)
        if other is None and not any(id(x) in self.known or not x.numel() for x in tensors):
            return func(*args, **kwargs)
        more, options = tree_map_only(Tensor, torch.clone, other or given)  # an op may change in place what it is given
        with torch.random.fork_rng({x.device for x in tensors if x.is_cuda}):  # both draw the same
            others = of_no_elements(func(*more, **options), more, options)
        made = func(*args, **kwargs)
        for x, y in zip(tree_leaves(made), tree_leaves(others), strict=True):
            if isinstance(x, Tensor) and isinstance(y, Tensor):
                self.known[id(x)] = x, y
        return made

    def beside(self, made: Any) -> Any:
        return tree_map_only(Tensor, lambda x: self.known[id(x)][1] if id(x) in self.known else x, made)


def undivided(func: Any, args: Any, kwargs: Mapping[str, Any], row: bool) -> Call | None:
    """The arguments with which a call divides by one where it divided by zero; None where it divides by no count."""
    func = getattr(func, "overloadpacket", func)
    if func in OVER_CLASSES:
        return summed(args, kwargs)
    found = DIVISORS.get(func)
    if found is None:
        return None
    place, name, negative = found
    if negative and not is_negative(args[1] if len(args) > 1 else kwargs.get("exponent")):
        return None
    if place < len(args):
        return (
            ((*args[:place], raised(args[place]), *args[place + 1 :]), kwargs) if is_count(args[place], row) else None
        )
    return (args, {**kwargs, name: raised(kwargs[name])}) if is_count(kwargs.get(name), row) else None


def is_negative(exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent < 0


def is_count(divisor: Any, row: bool) -> bool:
    """Whether it may be a count, which no gradient goes to."""
    if isinstance(divisor, Tensor):
        return divisor.numel() == 1 and not divisor.requires_grad and not (row and divisor.dim())
    return isinstance(divisor, (int, float)) and not divisor


def raised(count: Any) -> Any:
    """One for zero. Nobody waits for a tensor's number."""
    return count + (count == 0)


def summed(args: Any, kwargs: Mapping[str, Any]) -> Call:
    """The arguments of a mean over classes as those of a sum: its count is within the op."""
    if len(args) > PLACE and args[PLACE] in MEAN:
        return (*args[:PLACE], SUM[args[PLACE]], *args[PLACE + 1 :]), kwargs
    reduction = kwargs.get("reduction", MEAN[0])
    return args, {**kwargs, "reduction": SUM.get(reduction, reduction)} if len(args) <= PLACE else kwargs


def of_no_elements(made: Any, args: Any, kwargs: Any) -> Any:
    """Gives zero, through which gradients flow, for a mean of no elements, and anything else as it is."""
    given = tensors_in((args, kwargs))
    is_scalar = isinstance(made, Tensor) and made.is_floating_point() and not made.dim()
    if not is_scalar or all(x.numel() for x in given) or not made.isnan():
        return made
    if not all(bool(x.isfinite().all()) for x in given):
        return made
    return sum(((x * 0).sum().to(made.dtype) for x in given if x.requires_grad), made.new_zeros(()))


_job = threading.local()


@contextmanager
def counting(nothing: bool) -> Iterator[None]:
    """What this thread runs within the block is of a micro-batch that counts for nothing, or of one that counts."""
    before, _job.nothing = counts_nothing(), nothing
    try:
        yield
    finally:
        _job.nothing = before


def counts_nothing() -> bool:
    return getattr(_job, "nothing", False)


class CountedOp(nn.Module):
    """Stands for an op by which a count comes into the loss that a model returns. run: what the op calls, a module or
    a function."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not counts_nothing():
            return self.run(*args, **kwargs)
        with OverNothing() as over:
            return over.beside(self.run(*args, **kwargs))
