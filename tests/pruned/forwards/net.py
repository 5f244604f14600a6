"""What all forwards have in common: one convolution and one linear layer, pruned, so that all share their kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.pruned.support import pruned

SHAPE = (3, 6, 6)
Case = TypeVar("Case", bound="type[Net]")


class Net(nn.Module):
    """A forward is `between` the two layers, or all of `forward`. The other methods belong to the test.

    sparse: some layer of it is expected to run by a kernel. leaf: its input asks for a gradient.
    """

    sparse: ClassVar[bool] = True
    leaf: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(144, 8)

    def first(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))

    def last(self, h: Tensor) -> Tensor:
        return self.lin(h.flatten(1))

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self.first(x)))

    def finish(self) -> None:
        """Has what it has in float64, pruned."""
        pruned(self.double(), 0.5)

    def inputs(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """x: [B, 3, 6, 6] -> the arguments of a call."""
        return (x,), {}

    def change(self, turn: int) -> None:
        """What its owner does before a call."""

    def loss(self, output: Any) -> Tensor:
        """A number that all of the output counts in."""
        total = torch.zeros((), dtype=torch.float64)
        for i, y in enumerate(leaves(output)):
            if y.requires_grad:
                weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
                total = total + (y.double() * weights).mean()
        return total

    def seen(self) -> Any:
        """What else its owner looks at after the backward."""


def leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        yield from leaves(vars(value))
    elif isinstance(value, Mapping):
        yield from leaves(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)


def table() -> tuple[dict[str, type[Net]], Callable[[Case], Case]]:
    """A table of forwards, and the decorator that enters one under its name."""
    found: dict[str, type[Net]] = {}

    def case(made: Case) -> Case:
        assert made.__name__ not in found
        found[made.__name__] = made
        return made

    return found, case
