"""What PyTorch divides a mean over classes by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def of_classes(target: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """How many targets are not ignored, or their classes' weights, []. target: of any shape; weight: [classes]."""
    kept = target[target != ignored]
    return torch.tensor(kept.numel()) if weight is None else weight.to(kept.device)[kept].sum()


@dataclass(frozen=True, eq=False)
class Classes:
    """`of_classes` with a module's weight."""

    weight: Tensor
    __name__ = "classes"  # in the code that torch.fx writes

    def __call__(self, target: Tensor, ignored: int) -> Tensor:
        return of_classes(target, self.weight, ignored)
