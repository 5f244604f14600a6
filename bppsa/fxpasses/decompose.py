"""Composite ATen ops in terms of simpler ones: what the recorder writes down instead. One row an op.

Only ops whose parts meet different passes belong here (a bias is pointwise, a product is not; a mean is a reduction).
A pointwise op, however composite, keeps its own rule and its own line in `codegen/pointwise.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def addmm(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.mm(x, weight)
    scaled = product if alpha == 1 else product * alpha
    return scaled + (bias if beta == 1 else bias * beta)


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = 1 / torch.sqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * rstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rstd


def inverse(count: float) -> float:
    """One over a number of terms; with none, as PyTorch: 0 * inf is NaN, anything else infinite."""
    return 1 / count if count > 0 else math.inf


def mean(x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    dims = list(dims) if dims else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    return x.sum(dims, keepdim=keepdim, dtype=dtype) * inverse(count)


def var(
    x: Tensor, dims: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims = list(dims) if dims else list(range(x.dim()))
    centred = x - x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    return (centred * centred).sum(dims, keepdim=keepdim) * inverse(count)


def split(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    return [torch.narrow(x, dim, at, min(size, x.shape[dim] - at)) for at in range(0, x.shape[dim], size)]


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    return [torch.narrow(x, dim, sum(sizes[:i]), size) for i, size in enumerate(sizes)]


DECOMPOSE: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: addmm,
    aten.native_layer_norm.default: layer_norm,
    aten.mean.dim: mean,
    aten.var.correction: var,
    aten.split.Tensor: split,
    aten.unsafe_split.Tensor: split,
    aten.split_with_sizes.default: split_with_sizes,
    aten.unsafe_split_with_sizes.default: split_with_sizes,
    aten.unbind.int: lambda x, dim=0: [x.select(dim, i) for i in range(x.shape[dim])],
    aten.lerp.Tensor: lambda a, b, weight: a + weight * (b - a),
    aten.addcmul.default: lambda a, x, y, *, value=1: a + (x * y if value == 1 else x * y * value),
}
