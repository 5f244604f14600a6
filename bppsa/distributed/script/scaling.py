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
    """Where a gradient of any rank is infinite or no number, all gradients of all ranks become infinite: `scaler.step`
    skips everywhere then, for each optimizer, and `scaler.update` gives all ranks the same scale. all_gather: gives
    what each rank says.

    PyTorch's scaler raises for an optimizer without gradients, and for an update without an optimizer. A rank that has
    none goes by what the others have found.
    """
    grads = (p.grad for p in parameters if p.grad is not None)
    values = [grad._values() if grad.is_sparse else grad for grad in grads]
    mine = not math.isfinite(float(get_total_norm(values, math.inf)))
    found = any(all_gather(mine))
    if found:
        for value in values:
            value.fill_(math.inf)
    states = scaler._per_optimizer_states
    known = states.get(NO_OPTIMIZER)  # of another model since the last update
    before = isinstance(known, ScalerState) and bool(known.skips)
    skips = torch.full((), float(found or before), dtype=torch.float32, device=device)
    scaler._per_optimizer_states = defaultdict(lambda: ScalerState(skips), states)
    if not values:
        of_none = scaler._per_optimizer_states[NO_OPTIMIZER] = ScalerState(skips)
        of_none["found_inf_per_device"] = {}  # as `unscale_` says where there are no gradients


class ScalerState(dict[str, Any]):
    """What a scaler keeps of an optimizer until its update. skips: [], 1 where a rank has found what is not finite: it
    takes the place of what gradients tell where there are none."""

    def __init__(self, skips: Tensor) -> None:
        super().__init__(stage=OptState.READY, found_inf_per_device={})
        self.skips = skips

    def __setitem__(self, key: str, value: Any) -> None:
        empty = key == "found_inf_per_device" and not value
        super().__setitem__(key, {self.skips.device: self.skips} if empty else value)
