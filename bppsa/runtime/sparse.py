"""The engine of sparse operators: our kernels for plain tensors, else ATen ops."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bppsa.codegen.cpu.native import REAL
from bppsa.codegen.cpu.sparse import NativeSparse, NativeSymbolic
from bppsa.codegen.gpu.native_sparse import TritonSparse
from bppsa.decisions import warn_without_kernels
from bppsa.errors import BuildError
from bppsa.runtime.pool import Pool
from bppsa.sparsity.patterns.engine import ATEN
from bppsa.sparsity.patterns.pattern import Pattern
from bppsa.sparsity.patterns.product import ProductPlan

T = TypeVar("T")

# Products are large, and faulting in fresh pages takes as long as computing them: what a step let go serves the next.
_pool = Pool(largest_idle=2 << 30)


class Kernels:
    """An `Engine`. Where nothing can be built it is ATen, after one warning."""

    def symbolic(self, a: Pattern, b: Pattern) -> ProductPlan:
        native = built(native_symbolic)
        return ATEN.symbolic(a, b) if native is None else native(a, b)

    def multiply(self, plan: ProductPlan, a: Tensor, b: Tensor) -> Tensor:
        return first_built(lambda kernels: kernels.multiply(plan, a, b), on_cpu(a, b), on_gpu(a, b))

    def mv(self, pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
        return first_built(lambda kernels: kernels.mv(pattern, values, g), on_cpu(values, g), on_gpu(values, g))

    def mm(self, pattern: Pattern, values: Tensor, w: Tensor) -> Tensor:
        shared = values.dim() == 1 and w.dim() == 2
        return first_built(lambda kernels: kernels.mm(pattern, values, w), on_cpu(values, w) if shared else None)

    def scale(self, pattern: Pattern, values: Tensor, d: Tensor, *, rows: bool, select: bool = False) -> Tensor:
        return first_built(
            lambda kernels: kernels.scale(pattern, values, d, rows=rows, select=select), on_cpu(values, d)
        )

    def chosen(self, grid: Pattern, place: Tensor, dtype: torch.dtype) -> Tensor:
        return first_built(lambda kernels: kernels.chosen(grid, place, dtype), on_cpu(place, real=dtype))


Found: TypeAlias = "NativeSparse | TritonSparse | None"


def first_built(call: Callable[[Any], Tensor], *kernels: Found) -> Tensor:
    """What the first kernels give that there are and that compile, else ATen ops."""
    for found in kernels:
        if found is not None and (result := built(functools.partial(call, found))) is not None:
            return result
    return call(ATEN)


def on_cpu(*operands: Tensor, real: torch.dtype | None = None) -> NativeSparse | None:
    """None where an operand is not plain memory of one type, or where autograd, a transform of torch.func, a tracer or
    a mode watches what is done to it. real: of the result, where that is not the operands' type."""
    real = real or operands[0].dtype
    if real not in REAL or not suit("cpu", operands):
        return None
    return built(functools.partial(native_sparse, real))


def on_gpu(*operands: Tensor) -> TritonSparse | None:
    """The same for a CUDA device."""
    if operands[0].dtype not in REAL or not suit("cuda", operands):
        return None
    return triton_sparse() if importlib.util.find_spec("triton") else None


def suit(device: str, operands: Sequence[Tensor]) -> bool:
    dtype = operands[0].dtype
    if any(not is_readable(t) or t.dtype is not dtype or t.device.type != device for t in operands):
        return False
    return not (is_watched() or (torch.is_grad_enabled() and any(t.requires_grad for t in operands)))


def is_readable(t: Tensor) -> bool:
    """Whether its numbers are those in its memory."""
    return type(t) is Tensor and t.layout is torch.strided and not t.is_neg()


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
    return NativeSparse(REAL[dtype], _pool.take)


@functools.cache
def triton_sparse() -> TritonSparse:
    return TritonSparse()


@functools.cache
def native_symbolic() -> NativeSymbolic:
    return NativeSymbolic()


def built(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except BuildError as error:
        warn_without_kernels(error)
        return None
