"""What is read of a model's outputs where its loss is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bppsa.fxpasses.partition.call.arguments import sized

FEW = 4  # rows


def own_loss(output: Any) -> Any:
    """The loss of what a model returns: what `stated_loss` says, or the first or last element of a tuple, as of
    (logits, loss), where no other is a number."""
    if not isinstance(output, (tuple, list)) or hasattr(output, "loss"):
        return stated_loss(output)
    numbers = [i for i, x in enumerate(output) if isinstance(x, Tensor) and not x.dim() and x.is_floating_point()]
    if len(numbers) != 1 or numbers[0] not in (0, len(output) - 1):
        return output
    return output[numbers[0]]


def stated_loss(output: Any) -> Any:
    """All of it, or a field or key `loss`."""
    if isinstance(output, Mapping):
        return output.get("loss", output)
    return output if isinstance(output, Tensor) else getattr(output, "loss", output)


@dataclass(frozen=True)
class FewOutputs:
    """What a model returns for a few rows, in the place of what it would return for those of a call.

    examples: such outputs, which may be on meta. shapes: theirs in symbols; given: those of the leaves of the model's
    arguments; rows: the symbols of the number of rows.
    """

    examples: tuple[Any, ...]
    shapes: tuple[tuple[Any, ...] | None, ...]
    given: tuple[tuple[Any, ...] | None, ...]
    rows: frozenset[Any]

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """leaves: of the arguments of a call, whose other sizes than rows the outputs take."""
        sizes = {symbol: FEW for symbol in self.rows}
        for leaf, shape in zip(leaves, self.given, strict=True):
            if isinstance(leaf, Tensor) and shape is not None and leaf.dim() == len(shape):
                sizes = dict(zip(shape, leaf.shape, strict=True)) | sizes
        return [
            x if shape is None else resized(x, sized(shape, x.shape, sizes))
            for x, shape in zip(self.examples, self.shapes, strict=True)
        ]


def few(
    outputs: Sequence[Any],
    shapes: Sequence[tuple[Any, ...] | None],
    given: Sequence[tuple[Any, ...] | None],
    by_rows: Sequence[bool],
) -> FewOutputs:
    """outputs: of an example, with their shapes in symbols. given, by_rows: of the leaves of its arguments, their
    shapes, and whether they have rows."""
    symbols = {shape[0] for shape, yes in zip(given, by_rows, strict=True) if yes and shape}
    rows = frozenset(symbol for symbol in symbols if hasattr(symbol, "free_symbols"))
    known = tuple(
        (shape or tuple(x.shape)) if isinstance(x, Tensor) else None for x, shape in zip(outputs, shapes, strict=True)
    )
    sizes = dict.fromkeys(rows, FEW)
    kept = tuple(
        x if shape is None else resized(x.detach(), sized(shape, x.shape, sizes)).clone()
        for x, shape in zip(outputs, known, strict=True)
    )
    return FewOutputs(kept, known, tuple(given), rows)


def few_by_hand(outputs: Sequence[Any], leaves: Sequence[Any], by_rows: Sequence[bool]) -> FewOutputs:
    """The same where no graph tells sizes: all but rows are as in the example. leaves: of the arguments."""
    rows = next((x.shape[0] for x, yes in zip(leaves, by_rows, strict=True) if yes), None)
    shapes = [
        ((FEW,) if x.dim() and x.shape[0] == rows else x.shape[:1]) + x.shape[1:] if isinstance(x, Tensor) else None
        for x in outputs
    ]
    return few(outputs, shapes, [None] * len(leaves), by_rows)


def resized(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with its first entries along each axis, again from the start where there are too few."""
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = x.index_select(axis, torch.arange(size, device=x.device) % max(x.shape[axis], 1))
    return x
