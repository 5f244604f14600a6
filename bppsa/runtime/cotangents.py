"""What a backward is given."""

from __future__ import annotations

import torch
from torch import Tensor

_keys = torch._C._dispatch_keys
_SUBCLASS = torch._C.DispatchKey.Python


def is_memory(cotangent: Tensor | None) -> bool:
    """Whether a kernel may read its numbers. One that stands for many at once, as under
    `torch.autograd.grad(..., is_grads_batched=True)`, has no memory of its own, and a subclass says itself what an op
    makes of it."""
    if cotangent is None:
        return True
    # its numbers are others than those in memory, or it has none there
    is_marked = cotangent.is_neg() or cotangent.is_conj() or cotangent._is_zerotensor()
    return torch._C._has_storage(cotangent) and not is_marked and not _keys(cotangent).has(_SUBCLASS)
