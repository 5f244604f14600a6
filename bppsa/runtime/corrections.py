"""Along the chunks, the linear recurrence of a Newton iteration: d_{c+1} = J_c d_c + r_c, d_0 = 0.

J_c comes as its transpose, out of a reduction (`runtime.reduce`). Chunks stand in the order of the recurrence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bppsa.plan.levels import linear
from bppsa.runtime.pairs import scaled
from bppsa.runtime.reduce import Reduction
from bppsa.runtime.sweep import Sweep


def corrections(sweep: Sweep, reduction: Reduction, running: Tensor, residual: Tensor) -> Tensor:
    """d_c, [C, B, N]. running: what the reduction left, [C, B, m + 2, pitch]; residual: r_c, [C, B, N]."""
    if sweep.boundaries is not None and reduction.structure.width in (1, reduction.size):
        given = as_maps(reduction, running, residual)
        found = sweep.boundaries(linear(len(given)), given, torch.zeros_like(residual[0]), reverse=True)
        if found is not None:
            return found
    return one_by_one(reduction, running, residual)


def as_maps(reduction: Reduction, running: Tensor, residual: Tensor) -> Tensor:
    """J_c and r_c where a reduction has J_c^T and b_c: what `codegen.gpu.native_scan` takes."""
    size, width, order = reduction.size, reduction.structure.width, reduction.structure.order
    if width == 1:  # J_c is J_c^T
        maps = running.clone()
    else:
        (numbers,) = order
        maps = torch.zeros_like(running)
        maps[..., numbers.unsqueeze(1), numbers] = jacobians(reduction, running).squeeze(-3).mT
        maps[..., -1, :size] = torch.nan  # where nothing gets through, J_c has zeros
    maps[..., -2, :size] = residual
    return maps


def one_by_one(reduction: Reduction, running: Tensor, residual: Tensor) -> Tensor:
    """By torch's ops, a product a chunk."""
    order, jacobian = reduction.structure.order, jacobians(reduction, running)
    right = residual[..., order].unsqueeze(-1)
    d = [torch.zeros_like(right[0])]
    for J, r in zip(jacobian[:-1], right[:-1], strict=True):
        d.append(J @ d[-1] + r)
    found = torch.empty_like(residual)
    found[..., order] = torch.stack(d).squeeze(-1)
    return found


def jacobians(reduction: Reduction, running: Tensor) -> Tensor:
    """J of every chunk, block by block, [C, B, count, m, m], of what a reduction leaves: its transpose, whose columns
    have a power of two beside them."""
    width, size, order = reduction.structure.width, reduction.size, reduction.structure.order
    columns = scaled(running[..., :width, :size], running[..., :width, size + 1 :].int())
    through = running[..., -1:, :size].isnan()  # a reset selects, whatever stood there
    return torch.where(through, columns, 0.0)[..., order].transpose(-3, -2)
