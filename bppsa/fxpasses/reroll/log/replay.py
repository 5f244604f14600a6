"""A log, run again op by op on other tensors: what a plan of it has to compute, whatever the values are.

The call that was logged may be a poor witness: a mask may be true everywhere, a layer may begin with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.reroll.log.ops import Log, LoggedValue
from bppsa.fxpasses.theirs import theirs

AMOUNT = 0.05  # by which numbers are moved: enough to be seen, too little to leave where most functions are defined


class Replay:
    """Made before passes change the log's ops."""

    def __init__(self, log: Log) -> None:
        self.groups = tuple(map(tuple, (log.arguments, log.captured, log.literals, log.numbers)))
        self.ops = [op.as_it_is() for op in (*log.prologue, *log.ops)]
        self.prologue = len(log.prologue)

    @property
    def given(self) -> list[LoggedValue]:
        return [value for group in self.groups for value in group]

    def run(self, given: Mapping[LoggedValue, Tensor]) -> dict[LoggedValue, Tensor]:
        """Every value of the log."""
        made = dict(given)
        for op in self.ops:
            args, kwargs = op.call(made)
            with torch.set_grad_enabled(op.grad and torch.is_grad_enabled()):
                result: Any = theirs(op.target, *args, **kwargs)
            made.update(zip(op.outs, [result] if op.single else result, strict=True))
        return made


def moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A leaf like `tensor`, with other numbers where they may be others; those that may be indices stay."""
    value = tensor.detach().clone()
    if value.dtype is torch.bool:
        value = (torch.rand(value.shape, generator=generator) < 0.5).to(value.device)
    elif value.dtype.is_floating_point or value.dtype.is_complex:
        value += AMOUNT * torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value.device)
    return value.requires_grad_(tensor.requires_grad)


def within(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The same for functions of probabilities, scales and the like: numbers stay in the range that they have, and one
    that has none comes nearer to zero."""
    value = moved(tensor, generator).detach()
    if value.dtype.is_floating_point and value.numel():
        share = torch.rand(value.shape, generator=generator, dtype=value.dtype).to(value.device)
        low, high = tensor.detach().aminmax()
        value = tensor.detach() * (1 - AMOUNT * share) if low == high else low + (high - low) * share
    return value.requires_grad_(tensor.requires_grad)


def unmoved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


MOVES = (moved, within, unmoved)  # the later ones where ops are not defined on what the earlier ones give
