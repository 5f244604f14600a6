"""Loss scaling, as torch.amp.GradScaler does it, where each rank has gradients of its own Parameters alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.nn.utils import get_total_norm

NO_OPTIMIZER = 0  # no optimizer's id


def scale_of(scaler: GradScaler | None, device: torch.device) -> float:
    """What the scaler multiplies a loss with now. It is ready for `scaler.step` afterwards."""
    return 1.0 if scaler is None else float(scaler.scale(torch.ones((), device=device)))


def skip_together(
    scaler: GradScaler, parameters: Iterable[Tensor], device: torch.device, all_gather: Callable[[bool], Sequence[bool]]
) -> None:
    """Where a gradient of any rank is infinite or no number, one of each rank is: `scaler.step` skips on all of them
    then, and `scaler.update` gives all the same scale. all_gather: gives what each rank says.

    A rank may have an optimizer without gradients, or none, for which PyTorch's scaler raises: here it knows what all
    ranks have found."""
    grads = (p.grad for p in parameters if p.grad is not None)
    values = [grad._values() if grad.is_sparse else grad for grad in grads]
    mine = not math.isfinite(float(get_total_norm(values, math.inf)))
    anywhere = any(all_gather(mine))
    if anywhere and not mine and values:
        values[0].fill_(math.inf)
    found = {device: torch.full((), float(anywhere), dtype=torch.float32, device=device)}
    scaler._per_optimizer_states = defaultdict(lambda: ScalerState(found))
    scaler._per_optimizer_states[NO_OPTIMIZER]["found_inf_per_device"] = found


class ScalerState(dict[str, Any]):
    """What a scaler keeps of an optimizer until its update. found: in the place of what gradients tell where there are
    none."""

    def __init__(self, found: dict[torch.device, Tensor]) -> None:
        super().__init__(stage=OptState.READY, found_inf_per_device={})
        self.found = found

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value or self.found if key == "found_inf_per_device" else value)
