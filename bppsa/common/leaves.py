"""Leaves of autograd, which a gradient is asked of."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def wanting(x: Any) -> Any:
    """A tensor that wants a gradient, where it may have one."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().requires_grad_(x.is_floating_point() or x.is_complex())
