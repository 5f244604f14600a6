"""Tensors that are zero but at some entries, and the ops that keep them so: those of SGD and of clipping.

An op's function is given such a tensor as `Kept` and others as they are. It gives None where only all numbers will do:
a factor that is not finite makes zeros NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bppsa.codegen.blocked.native import adder
from bppsa.codegen.native import available_threads

ENTRIES_PER_THREAD = 8_000
aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Kept:
    """Of `size`, on the CPU. values: [E], at `places` [E], int32, no two alike, of the flat tensor."""

    values: Tensor
    places: Tensor
    size: torch.Size

    def dense(self) -> Tensor:
        return self.add_to(self.values.new_zeros(self.size), 1.0)

    def with_values(self, values: Tensor) -> Kept:
        return replace(self, values=values)

    def add_to(self, target: Tensor, factor: float) -> Tensor:
        """In place, to a contiguous tensor of the same size and dtype. Raises `BuildError`."""
        count = self.places.numel()
        threads = max(1, min(available_threads(), count // ENTRIES_PER_THREAD))
        addresses = (t.data_ptr() for t in (target, self.places, self.values))
        adder(target.dtype)(*addresses, factor, count, threads)
        return target


Function = Callable[..., "Kept | Tensor | None"]
KEEPING: dict[Any, Function] = {}


def keeps(op: Any) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        KEEPING[op] = function
        return function

    return register


def number(x: Any) -> float:
    """Of a factor; NaN for what is no single number."""
    if isinstance(x, Tensor):
        return float(x) if x.dim() == 0 else math.nan
    return x if isinstance(x, (int, float)) else math.nan


@keeps(aten.clone.default)
def clone(x: Kept, memory_format: torch.memory_format | None = None) -> Kept | None:
    as_it_is = memory_format in (None, torch.preserve_format, torch.contiguous_format)
    return x.with_values(x.values.clone()) if as_it_is else None


@keeps(aten.neg.default)
def negative(x: Kept) -> Kept:
    return x.with_values(-x.values)


@keeps(aten.zero_.default)
def zero(x: Kept) -> Kept:
    x.values.zero_()
    return x


@keeps(aten.mul_.Tensor)
def scale(x: Kept | Tensor, factor: Any) -> Kept | None:
    if not isinstance(x, Kept) or not math.isfinite(factor := number(factor)):
        return None
    x.values.mul_(factor)
    return x


@keeps(aten.linalg_vector_norm.default)
def norm(x: Kept, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor | None:
    if dim is not None or keepdim or order <= 0 or not x.values.numel():
        return None
    return torch.linalg.vector_norm(x.values, order, dtype=dtype)


@keeps(aten.add_.Tensor)
def add_in_place(x: Kept | Tensor, y: Any, *, alpha: Any = 1) -> Kept | Tensor | None:
    if not isinstance(y, Kept) or not math.isfinite(factor := number(alpha)):
        return None
    if isinstance(x, Kept):
        if x.places is not y.places:
            return None
        x.values.add_(y.values, alpha=factor)
        return x
    plain = type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.is_contiguous()
    return y.add_to(x, factor) if plain and x.shape == y.size and x.dtype is y.values.dtype else None


@keeps(aten.add.Tensor)
def add(x: Kept | Tensor, y: Any, *, alpha: Any = 1) -> Kept | Tensor | None:
    """Gradients of one pattern, or a gradient and the weight that decays."""
    if isinstance(x, Kept) and isinstance(y, Kept):
        return add_in_place(x.with_values(x.values.clone()), y, alpha=alpha)
    if isinstance(x, Kept) and isinstance(y, Tensor) and math.isfinite(factor := number(alpha)):
        return add_in_place(y * factor, x)
    return None
