"""Tensors that a cell closes over and that have a row for each of the batch: a memory that it attends to, a mask of all
steps. They are given to the sweep like x, the same in every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from bppsa.fxpasses.recording.capture import Recording, copied

aten = torch.ops.aten

MOST_TRIED = 4  # tensors of a cell that are tried alone


@dataclass(frozen=True, eq=False)
class Chosen:
    """Some tensors, told by identity, and in which dimension each has its rows, 0 or 1."""

    tensors: tuple[tuple[Tensor, int], ...] = ()

    def dim(self, tensor: Tensor) -> int | None:
        return next((dim for known, dim in self.tensors if known is tensor), None)


def perhaps_by_rows(tensors: Sequence[Tensor], rows: int) -> Iterator[Chosen]:
    """Which of the tensors that a cell closes over may have rows: all whose size allows it, those of higher rank, those
    that are no parameters, and each alone. They are in front first, then also second, as in [S, B, H]."""
    known = [t for t in tensors if t.dim() > 1 and is_number_or_truth(t)]
    front, second = ([(t, dim) for t in known if t.shape[dim] == rows > 1] for dim in (0, 1))
    either = [*front, *((t, dim) for t, dim in second if t.shape[0] != rows)]
    tried: list[set[tuple[int, int]]] = []
    for fitting in (front, either, second):
        deep = [(t, dim) for t, dim in fitting if t.dim() > 2]
        free = [(t, dim) for t, dim in fitting if not isinstance(t, nn.Parameter)]
        for some in (fitting, deep, free, *([one] for one in fitting[:MOST_TRIED])):
            names = {(id(t), dim) for t, dim in some}
            if some and names not in tried:
                tried.append(names)
                yield Chosen(tuple(some))


def is_number_or_truth(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool


def with_rows_last(recording: Recording, chosen: Chosen) -> Recording:
    """The same recording, those tensors that the cell closed over and that have rows behind the others, given with
    their rows in front."""
    if any(dim for _, dim in chosen.tensors):
        recording = copied(recording)
    first = [pair for pair in recording.captured if chosen.dim(pair[0]) is None]
    last = [pair for pair in recording.captured if chosen.dim(pair[0]) is not None]
    for tensor, node in last:
        if chosen.dim(tensor):
            turn(recording.graph, node)
    return replace(recording, captured=(*first, *last))


def turn(graph: fx.Graph, node: fx.Node) -> None:
    """Has the placeholder stand for the tensor with its first two dimensions exchanged."""
    with graph.inserting_after(node):
        turned = graph.call_function(aten.transpose.int, (node, 0, 1))
    node.replace_all_uses_with(turned, lambda user: user is not turned)
    node.meta["val"] = node.meta["val"].transpose(0, 1).contiguous()
    turned.meta["val"] = node.meta["val"].transpose(0, 1)
