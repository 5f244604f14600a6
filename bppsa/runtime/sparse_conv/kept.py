"""Tensors that are zero but at some entries, and the ops that keep them so: those of SGD and of clipping.

An op's function is given such a tensor as `KeptValues` and others as they are. It gives None where only all numbers
will do: a factor that is not finite in the tensor's dtype makes zeros NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.codegen.cpu.native import threads_sharing
from bppsa.codegen.sparse_conv.native import adder

ENTRIES_PER_THREAD = 8_000
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class KeptValues:
    """Values of a tensor of `size`, on the CPU. values: [E], at `places` [E], int32, no two alike, of the flat
    tensor."""

    values: Tensor
    places: Tensor
    size: torch.Size

    def dense(self) -> Tensor:
        return self.add_to(self.values.new_zeros(self.size), 1.0)

    def with_values(self, values: Tensor) -> KeptValues:
        return replace(self, values=values)

    def add_to(self, target: Tensor, factor: float) -> Tensor:
        """Adds them in place to a contiguous tensor of the same size and dtype. Raises `BuildError`."""
        count = self.places.numel()
        threads = threads_sharing(count, ENTRIES_PER_THREAD)
        addresses = (t.data_ptr() for t in (target, self.places, self.values))
        adder(target.dtype)(*addresses, factor, count, threads)
        return target


Function = Callable[..., "KeptValues | Tensor | None"]
KEEPING: dict[Any, Function] = {}


def keeps(op: Any) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        KEEPING[op] = function
        return function

    return register


def finite(factor: Any, x: KeptValues) -> float | None:
    """A single number, one that x's dtype holds; else None."""
    if isinstance(factor, Tensor):
        factor = float(factor) if factor.dim() == 0 else math.nan
    known = isinstance(factor, (int, float)) and abs(factor) <= torch.finfo(x.values.dtype).max
    return factor if known else None


@keeps(aten.clone.default)
def clone(x: KeptValues, memory_format: torch.memory_format | None = None) -> KeptValues | None:
    as_it_is = memory_format in (None, torch.preserve_format, torch.contiguous_format)
    return x.with_values(x.values.clone()) if as_it_is else None


@keeps(aten.neg.default)
def negative(x: KeptValues) -> KeptValues:
    return x.with_values(-x.values)


@keeps(aten.zero_.default)
def zero(x: KeptValues) -> KeptValues:
    x.values.zero_()
    return x


@keeps(aten.mul_.Tensor)
def scale(x: KeptValues | Tensor, factor: Any) -> KeptValues | None:
    if not isinstance(x, KeptValues) or (number := finite(factor, x)) is None:
        return None
    x.values.mul_(number)
    return x


@keeps(aten.div_.Tensor)
def divide(x: KeptValues | Tensor, divisor: Any) -> KeptValues | None:
    if not isinstance(x, KeptValues) or not (number := finite(divisor, x)):
        return None
    x.values.div_(number)
    return x


@keeps(aten.linalg_vector_norm.default)
def norm(
    x: KeptValues, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor | None:
    if dim is not None or keepdim or order <= 0 or not x.values.numel():
        return None
    return torch.linalg.vector_norm(x.values, order, dtype=dtype)


@keeps(aten.add_.Tensor)
def add_in_place(x: KeptValues | Tensor, y: Any, *, alpha: Any = 1) -> KeptValues | Tensor | None:
    if not isinstance(y, KeptValues) or (factor := finite(alpha, y)) is None:
        return None
    if isinstance(x, KeptValues):
        if x.places is not y.places:
            return None
        x.values.add_(y.values, alpha=factor)
        return x
    plain = type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.is_contiguous()
    return y.add_to(x, factor) if plain and x.shape == y.size and x.dtype is y.values.dtype else None


@keeps(aten.add.Tensor)
def add(x: KeptValues | Tensor, y: Any, *, alpha: Any = 1) -> KeptValues | Tensor | None:
    """Gradients of one pattern, or a gradient and the weight that decays."""
    if isinstance(x, KeptValues) and isinstance(y, KeptValues):
        return add_in_place(x.with_values(x.values.clone()), y, alpha=alpha)
    if not isinstance(x, KeptValues) or not isinstance(y, Tensor) or (factor := finite(alpha, x)) is None:
        return None
    return add_in_place(y * factor, x)
