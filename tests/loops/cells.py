"""What the tables of models with loops are made of: a row is a model, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

B, T, N, H = 3, 14, 3, 4
Make = Callable[[], tuple[nn.Module, tuple[Any, ...]]]
FOUND: dict[str, Make] = {}


def x(steps: int = T, dim: int = 1) -> Tensor:
    shape = [B, N]
    shape.insert(dim, steps)
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def row(name: str, *inputs: Callable[[], Any]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(cls: type[nn.Module]) -> type[nn.Module]:
        FOUND[name] = lambda: (cls(), tuple(make() for make in inputs or (x,)))
        return cls

    return add


class Cell(nn.Module):
    kind: Any = nn.GRUCell

    def __init__(self, width: int = N) -> None:
        super().__init__()
        self.cell = self.kind(width, H)
        self.head = nn.Linear(H, 2)

    def start(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], H)
