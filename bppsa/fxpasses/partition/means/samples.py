"""Numbers that are made up to try a call with, and some rows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.partition.call.results import same
from bppsa.fxpasses.partition.check.rows import axis_of_rows, of_rows

ROWS = 4  # how many there are in a trial
PARTS = ((2, 0), (3, 1))  # those that are run by themselves


@dataclass(frozen=True)
class Sample:
    """What numbers are like: how far they spread, about what, and how large the gradients are that come in."""

    spread: float
    centre: float
    gradient: float

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, random: torch.Generator) -> Tensor:
        """Whole numbers are 0 or 1, as any of two classes or more may be."""
        if dtype.is_floating_point or dtype.is_complex:
            drawn = torch.rand(shape, generator=random, dtype=torch.float64) * 2 - 1
            return (drawn * self.spread + self.centre).to(dtype)
        return torch.randint(2, shape, generator=random).to(dtype)


SAMPLES = (Sample(0.4, 0.5, 1.0), Sample(2.0, 0.0, 30.0), Sample(50.0, 0.0, 0.01))  # the first: likelihoods


@dataclass(frozen=True)
class SomeRows:
    """Some rows. inner: whether a dimension that has rows and others together has rows inside."""

    rows: tuple[int, ...]
    inner: bool

    def of(self, x: Tensor, axis: int) -> Tensor:
        return of_rows(x, axis, ROWS, self.rows, self.inner)

    def axis(self, whole: Tensor, part: Tensor) -> int | None:
        """The dimension along which the part has some of the rows; None where there is not one."""
        return axis_of_rows(whole, part, ROWS, len(self.rows))


def number(size: Any, numbers: Mapping[Any, int]) -> int:
    """A size as the number that it is. Raises TypeError where one of its symbols is not known."""
    return int(size.xreplace(numbers) if hasattr(size, "xreplace") else size)


def add_up(parts: Sequence[Tensor | None], whole: Tensor | None) -> bool:
    """Whether the gradients of the parts make up that of the whole; None where there is none."""
    given = [x for x in parts if x is not None]
    if whole is None or not given:
        return whole is None and not given
    return same(torch.stack(given).sum(0), whole)
