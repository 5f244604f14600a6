"""Tensors that a cell closes over and that have a row for each of the batch: a memory that it attends to, a mask of all
steps. They are given to the sweep like x, the same in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bppsa.fxpasses.recording.capture import Recording

MOST_TRIED = 4  # tensors of a cell that are tried alone


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some tensors, told by identity."""

    tensors: tuple[Tensor, ...]

    def __contains__(self, tensor: object) -> bool:
        return any(tensor is known for known in self.tensors)


def perhaps_by_rows(tensors: Sequence[Tensor], rows: int) -> Iterator[Chosen]:
    """Which of the tensors that a cell closes over may have rows: all whose size allows it, those of higher rank, those
    that are no parameters, and each alone."""
    fitting = [t for t in tensors if t.dim() > 1 and len(t) == rows > 1 and is_number_or_truth(t)]
    deep, free = [t for t in fitting if t.dim() > 2], [t for t in fitting if not isinstance(t, nn.Parameter)]
    tried: list[list[int]] = []
    for some in (fitting, deep, free, *([t] for t in fitting[:MOST_TRIED])):
        names = [id(t) for t in some]
        if some and names not in tried:
            tried.append(names)
            yield Chosen(tuple(some))


def is_number_or_truth(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool


def with_rows_last(recording: Recording, beside: Callable[[Tensor], bool]) -> Recording:
    """The same recording, those tensors that the cell closed over for which `beside` is true behind the others."""
    return replace(recording, captured=tuple(sorted(recording.captured, key=lambda pair: beside(pair[0]))))
