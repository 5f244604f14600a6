"""Loss scaling, as torch.amp.GradScaler does it, where each rank has gradients of its own Parameters alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import get_total_norm


def scale_of(scaler: GradScaler | None, device: torch.device) -> float:
    """What the scaler multiplies a loss with now. It is ready for `scaler.step` afterwards."""
    return 1.0 if scaler is None else float(scaler.scale(torch.ones((), device=device)))


def skip_together(parameters: Iterable[Tensor], all_gather: Callable[[bool], Sequence[bool]]) -> None:
    """Where a gradient of any rank is infinite or no number, one of each rank is: `scaler.step` skips on all of them
    then, and `scaler.update` gives all the same scale. all_gather: gives what each rank says."""
    grads = (p.grad for p in parameters if p.grad is not None)
    values = [grad._values() if grad.is_sparse else grad for grad in grads]
    mine = not math.isfinite(float(get_total_norm(values, math.inf)))
    if any(all_gather(mine)) and not mine and values:
        values[0].fill_(math.inf)
