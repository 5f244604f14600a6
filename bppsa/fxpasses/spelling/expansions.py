"""What ops of rows [B, ...] are made of: sums, maxima, slices and pointwise ops, so many as grow little with the number
of columns.

Values, ties and what a NaN gives are PyTorch's. NotImplemented leaves an op as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.one_hot import ONE_HOT, as_comparison
from bppsa.fxpasses.spelling.choosing import (
    aminmax,
    extremum_place,
    gather,
    index,
    kth_value,
    lookup,
    median,
    place_among,
    selected,
    sort,
    topk,
)
from bppsa.fxpasses.spelling.convolution import convolution, max_pool, mean_pool
from bppsa.fxpasses.spelling.exponential import matrix_exp
from bppsa.fxpasses.spelling.integers import OF_BITS
from bppsa.fxpasses.spelling.losses import LOSSES
from bppsa.fxpasses.spelling.moving import cross, mirrored, nearest, pad, repeat, rot90, unfold, without_empty
from bppsa.fxpasses.spelling.running import count, holds, prod, running, running_extremum, running_logsumexp
from bppsa.fxpasses.spelling.statistics import batch_norm, distances, nansum, norm, var_mean, vector_norm
from bppsa.fxpasses.spelling.writing import added, index_fill, index_put, put_columns, replaced, scatter, scatter_reduce

aten = torch.ops.aten


def round_to(x: Tensor, *, decimals: int) -> Tensor:
    """Rounds as PyTorch does: by a power of ten that is no fraction."""
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


def logaddexp2(a: Tensor, b: Tensor) -> Tensor:
    return torch.logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


def angle(x: Tensor) -> Tensor:
    """The angle of a real number."""
    return torch.where(torch.isnan(x), x, torch.where(x < 0, math.pi, torch.zeros_like(x)))


def sinc(x: Tensor) -> Tensor:
    angle = math.pi * torch.where(x == 0, 1.0, x)
    return torch.where(x == 0, 1.0, torch.sin(angle) / angle)


def multivariate_lgamma(x: Tensor, p: int) -> Tensor:
    constant = torch.full_like(x, p * (p - 1) / 4 * math.log(math.pi))
    return sum((torch.lgamma(x - 0.5 * j) for j in range(p)), constant)


def embedding(table: Tensor, at: Tensor, padding: int = -1, scale: bool = False, sparse: bool = False) -> Tensor:
    """The row of the padding has no gradient."""
    if scale or sparse:
        what = f"takes gradients that are {'scaled by how often a row is picked' if scale else 'sparse'}"
        raise Unsupported(what, op=str(aten.embedding.default), mend="pick rows by table[at]")
    found = lookup(table, at)
    if padding < 0 or found is NotImplemented:
        return found
    return torch.where((at == padding).unsqueeze(-1), found.detach(), found)


EXPANSIONS: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: extremum_place(1.0),
    aten.argmin.default: extremum_place(-1.0),
    aten.aminmax.default: aminmax,
    aten.searchsorted.Tensor: place_among,
    aten.bucketize.Tensor: lambda x, bounds, *, out_int32=False, right=False: place_among(
        bounds, x, out_int32=out_int32, right=right
    ),
    aten.topk.default: topk,
    aten.sort.default: sort,
    aten.sort.stable: lambda x, *, stable=False, dim=-1, descending=False: sort(x, dim, descending),
    aten.median.dim: median,
    aten.kthvalue.default: kth_value,
    aten.cummax.default: running_extremum(1.0),
    aten.cummin.default: running_extremum(-1.0),
    **dict.fromkeys((aten.any.dim, aten.any.dims), holds(lambda count, n: count > 0)),
    **dict.fromkeys((aten.all.dim, aten.all.dims), holds(lambda count, n: count == n)),
    **dict.fromkeys((aten.count_nonzero.default, aten.count_nonzero.dim_IntList), count),
    **LOSSES,
    **OF_BITS,
    aten.cumsum.default: running(torch.add),
    aten.cumprod.default: running(torch.mul),
    aten.logcumsumexp.default: running_logsumexp,
    aten.prod.dim_int: prod,
    aten.var_mean.correction: var_mean,
    aten.std_mean.correction: lambda x, dim=None, *, correction=None, keepdim=False: (
        x.std(dim, correction=correction, keepdim=keepdim),
        x.mean(dim, keepdim=keepdim),
    ),
    aten.linalg_vector_norm.default: vector_norm,
    aten.norm.ScalarOpt_dim: norm,
    aten._cdist_forward.default: distances,
    aten.nansum.default: nansum,
    aten._native_batch_norm_legit_no_training.default: batch_norm,
    aten.index.Tensor: index,
    aten.index_select.default: selected,
    aten.embedding.default: embedding,
    aten.gather.default: gather,
    **dict.fromkeys((aten.scatter.value, aten.scatter.src), scatter(replaced)),
    aten.scatter_add.default: scatter(added),
    aten.scatter_reduce.two: scatter_reduce,
    aten.index_add.default: put_columns(added),
    aten.index_copy.default: put_columns(replaced),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), index_fill),
    aten.index_put.default: index_put,
    aten.repeat.default: repeat,
    aten.cat.default: without_empty,
    **dict.fromkeys((aten.reflection_pad1d.default, aten.reflection_pad2d.default), pad(mirrored)),
    **dict.fromkeys((aten.replication_pad1d.default, aten.replication_pad2d.default), pad(nearest)),
    aten.unfold.default: unfold,
    aten.rot90.default: rot90,
    aten.linalg_cross.default: cross,
    aten.avg_pool1d.default: mean_pool(1),
    aten.avg_pool2d.default: mean_pool(2),
    aten.max_pool2d_with_indices.default: max_pool,
    aten.sinc.default: sinc,
    aten.linalg_matrix_exp.default: matrix_exp,
    aten.mvlgamma.default: multivariate_lgamma,
    aten.round.decimals: round_to,
    aten.logaddexp2.default: logaddexp2,
    aten.angle.default: angle,
    ONE_HOT: as_comparison,
    aten.convolution.default: convolution,
    aten.glu.default: lambda x, dim=-1: x.chunk(2, dim)[0] * torch.sigmoid(x.chunk(2, dim)[1]),
}
