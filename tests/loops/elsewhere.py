"""A function with a loop, which others reach by the name of this module."""

from __future__ import annotations

import torch
from torch import Tensor


def decayed(x: Tensor) -> Tensor:
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(0.9 * h + x[:, t])
        out.append(h)
    return torch.stack(out, 1)
