"""The engine of sparse operators: our kernels for plain tensors on a CPU, else ATen ops."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bppsa.codegen.native import REAL
from bppsa.codegen.sparse import NativeSparse, NativeSymbolic
from bppsa.errors import BuildError
from bppsa.runtime import pool
from bppsa.sparsity.engine import ATEN
from bppsa.sparsity.pattern import Pattern
from bppsa.sparsity.product import ProductPlan

T = TypeVar("T")


class Kernels:
    """An `Engine`. Where nothing can be built it is ATen, after one warning."""

    def symbolic(self, a: Pattern, b: Pattern) -> ProductPlan:
        native = built(native_symbolic)
        return ATEN.symbolic(a, b) if native is None else native(a, b)

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
        native = kernels_for(a, b)
        return ATEN.multiply(plan, a, b) if native is None else native.multiply(plan, a, b)

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
        native = kernels_for(values, g)
        return ATEN.mv(pattern, values, g) if native is None else native.mv(pattern, values, g)

    def mm(self, pattern: Pattern, values: Tensor, w: Tensor) -> Tensor:
        native = kernels_for(values, w) if values.dim() == 1 and w.dim() == 2 else None
        return ATEN.mm(pattern, values, w) if native is None else native.mm(pattern, values, w)

    def scale(self, pattern: Pattern, values: Tensor, d: Tensor, *, rows: bool, select: bool = False) -> Tensor:
        native = kernels_for(values, d)
        if native is None:
            return ATEN.scale(pattern, values, d, rows=rows, select=select)
        return native.scale(pattern, values, d, rows=rows, select=select)


def kernels_for(*operands: Tensor) -> NativeSparse | None:
    """None where an operand is not plain memory of one type on a CPU, or where autograd, a transform of torch.func, a
    tracer or a mode watches what is done to it."""
    dtype = operands[0].dtype
    if dtype not in REAL or not all(is_plain(t) and t.dtype is dtype for t in operands) or is_watched():
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
        return None
    return built(functools.partial(native_sparse, dtype))


def is_plain(t: Tensor) -> bool:
    return type(t) is Tensor and t.is_cpu and t.layout is torch.strided and not t.is_neg()


def is_watched() -> bool:
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
    )


@functools.cache
def native_sparse(dtype: torch.dtype) -> NativeSparse:
    return NativeSparse(REAL[dtype], pool.take)


@functools.cache
def native_symbolic() -> NativeSymbolic:
    return NativeSymbolic()


_warned: set[str] = set()


def built(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except BuildError as error:
        text = f"sparse products run on ATen ops: {error}"
        if text not in _warned:
            _warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
