"""Which calls of a pruned module are left to PyTorch, and why."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook

from bppsa._modules.calls import is_ordinary_moment, is_plain
from bppsa.codegen.blocked.native import LANES
from bppsa.errors import Reason

WATCHED = Reason("a transform, a tracer, forward-mode AD or a mode that sees each op")
HOOKED = Reason("hooks of all modules")
KEYWORDS = Reason("keyword arguments, or none at all", mend="give tensors by position")
OTHER = Reason("arguments that are no plain tensors")
AUTOCAST = Reason("autocast, in whose precision pruned layers have no kernels")


def unusual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reason | None:
    """None for a call with plain tensors that the kernels take, which nothing transforms or watches."""
    if not is_ordinary_moment():
        return WATCHED
    if _has_any_global_hook():
        return HOOKED
    if kwargs or not args:
        return KEYWORDS
    for x in args:
        if not is_plain(x):
            return OTHER
        if not x.is_cpu or x.dtype not in LANES:
            return Reason(
                f"pruned layers have kernels for float32 and float64 on a CPU, not for {x.dtype} on {x.device}"
            )
    return AUTOCAST if torch.is_autocast_enabled("cpu") else None
