"""Whether this process is one of several; some builds of PyTorch have no torch.distributed."""

from __future__ import annotations

import torch.distributed as dist


def in_group() -> bool:
    """Return whether there is a process group."""
    return dist.is_available() and dist.is_initialized()
