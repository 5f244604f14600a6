"""What a kernel or a product is given in a program's memories: a matrix, or the rows of all steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bppsa.common.chain import Weight
from bppsa.runtime.programs.program import Place, Writer


@dataclass(frozen=True)
class Strided:
    """first, second: strides, in reals. Of rows [T, B, n] these are those of a step and of a row."""

    place: Place
    first: int
    second: int

    @property
    def strides(self) -> tuple[int, int]:
        return self.first, self.second

    def past(self, to: Writer, reals: int) -> Strided:
        """The same so many reals further on."""
        return Strided(past(to, self.place, reals), self.first, self.second)


def past(to: Writer, place: Place, reals: int) -> Place:
    return Place(place.memory, place.offset + reals * to.dtype.itemsize)


@dataclass(frozen=True)
class Param:
    """A contiguous parameter of a recurrence, or room for its gradient."""

    place: Place
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def logical(self, weight: Weight, *, turned: bool = False) -> Strided:
        """[K, N], or turned [N, K]."""
        width = self.shape[-1]
        return Strided(self.place, 1, width) if weight.transposed is not turned else Strided(self.place, width, 1)
