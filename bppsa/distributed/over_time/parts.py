"""A tensor cut into parts, micro-batches by chunks of time, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bppsa.common.stages import Axes

Join = Callable[[Sequence[Any], int | None, Sequence[int]], Any]  # of pieces, along an axis, with these sizes along it


@dataclass(frozen=True)
class Parts:
    """rows: of each micro-batch; steps: of each of K chunks. Part b * K + k is chunk k of micro-batch b."""

    rows: Sequence[int]
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows) * len(self.steps)

    def is_last(self, part: int) -> bool:
        """Whether its chunk is the last."""
        return (part + 1) % len(self.steps) == 0

    def cut(self, x: Any, axes: Axes) -> list[Any]:
        """The piece of each part; what has no axis of rows, or of time, goes along whole."""
        return [
            piece for of_rows in pieces(x, axes.rows, self.rows) for piece in pieces(of_rows, axes.time, self.steps)
        ]

    def cut_at_end(self, x: Any, axes: Axes) -> list[Any]:
        """Cuts as `cut` does, but what has no axis of time is of the last step: other chunks have None."""
        found = self.cut(x, axes)
        return found if axes.time is not None else [x if self.is_last(part) else None for part, x in enumerate(found)]

    def joined(self, found: Sequence[Any], axes: Axes, join: Join) -> Any:
        """What was cut, put together again. found: by part."""
        K = len(self.steps)
        rows = [join(found[first : first + K], axes.time, self.steps) for first in range(0, len(found), K)]
        return join(rows, axes.rows, self.rows)


def pieces(x: Any, axis: int | None, sizes: Sequence[int]) -> Sequence[Any]:
    return [x] * len(sizes) if axis is None else x.split(list(sizes), axis)


def values(found: Sequence[Any], axis: int | None, sizes: Sequence[int]) -> Any:
    """The value of an output: the last chunk's where it has no axis of time."""
    if axis is None or not isinstance(found[0], Tensor):
        return found[-1]
    return torch.cat(list(found), axis)


def gradients(found: Sequence[Tensor | None], axis: int | None, sizes: Sequence[int]) -> Tensor | None:
    """The gradient of an argument, which several parts have read where it was not cut. None where no gradient flows."""
    known = [grad for grad in found if grad is not None]
    if not known or axis is None:
        return reduce(torch.add, known) if known else None

    def zeros(size: int) -> Tensor:
        shape = list(known[0].shape)
        shape[axis] = size
        return known[0].new_zeros(shape)

    return torch.cat([zeros(size) if g is None else g for g, size in zip(found, sizes, strict=True)], axis)


def lengths(size: int, count: int) -> list[int]:
    """The lengths of the parts that torch.tensor_split makes."""
    return [size // count + (part < size % count) for part in range(count)]
