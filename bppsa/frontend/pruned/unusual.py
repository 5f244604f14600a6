"""Which calls of a pruned module are left to PyTorch, and why."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from bppsa.codegen.sparse_conv.native import LANES
from bppsa.common.graph import tensors_in
from bppsa.errors import Reason
from bppsa.frontend.ordinary import is_plain, unusual_moment
from bppsa.frontend.pruned.regions.grow import AUTOCAST

HOOKED = Reason("hooks of all modules")


def unusual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reason | None:
    """None for a call with a tensor that the kernels take, which nothing transforms or watches."""
    if reason := unusual_moment():
        return reason
    if _has_any_global_hook():
        return HOOKED
    if torch.is_autocast_enabled("cpu"):
        return AUTOCAST
    if any(map(is_taken, args)):
        return None
    tensors = tensors_in((args, kwargs))
    if any(map(is_taken, tensors)):
        return None
    given = ", ".join(dict.fromkeys(f"{x.dtype} on {x.device}" for x in tensors)) or "no tensor"
    return Reason(f"pruned layers have kernels for plain tensors of float32 and float64 on a CPU, not for {given}")


def is_taken(x: Any) -> bool:
    return isinstance(x, Tensor) and is_plain(x) and x.is_cpu and x.dtype in LANES
