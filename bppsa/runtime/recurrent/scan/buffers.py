"""The tensors that stand for a kernel's buffers: parameters under the names they have there, and new ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bppsa.codegen.language.ir import Buffer, Kind
from bppsa.runtime import pool
from bppsa.runtime.recurrent.scan.extent import CPU, Extent, Shape

# A parameter, by its name as an argument: "param3" as [n], "weight3" or, transposed, "weight3t" as [K, N].
PARAMETERS: dict[Kind, Callable[[Sequence[Tensor], str], Tensor]] = {
    Kind.VECTOR: lambda params, name: params[int(name[5:])].reshape(-1).contiguous(),
    Kind.WEIGHT: lambda params, name: params[int(name[6:-1])].t() if name[-1] == "t" else params[int(name[6:])],
}

LEADING: dict[Kind, Callable[[Extent], Shape]] = {
    Kind.STREAM: lambda extent: (extent.steps, extent.rows),
    Kind.STATE: lambda extent: (extent.steps + 1, extent.rows),
    Kind.RUNNING: lambda extent: (extent.rows,),
    Kind.COLUMN_SUM: lambda extent: (),
}


def allocate(buffer: Buffer, extent: Extent, dtype: torch.dtype) -> Tensor:
    """Contents undefined, save for packed batches: rows that they never visit read as zeros."""
    shape = (*LEADING[buffer.kind](extent), buffer.width)
    if extent.active is not None:
        return torch.zeros(shape, dtype=dtype, device=extent.device)
    large = buffer.kind in (Kind.STREAM, Kind.STATE) and extent.device == CPU
    if large and (count := math.prod(shape)) * dtype.itemsize >= pool.SMALLEST:
        return pool.take(count, dtype).view(shape)
    return torch.empty(shape, dtype=dtype, device=extent.device)
