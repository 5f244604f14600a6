"""A batch cut into micro-batches, and the loss of each as its share of the whole batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.errors import ArgumentError, InputError

LossFunction = Callable[..., Tensor]


def rows_of(arguments: Any) -> int:
    """The size of the batch: dimension 0 of the first tensor that has one. Raises InputError where there is none."""
    sizes = [x.shape[0] for x in tree_leaves(arguments) if isinstance(x, Tensor) and x.dim()]
    if not sizes or not sizes[0]:
        raise InputError("a schedule cuts the batch into micro-batches, and the arguments hold no tensor with rows")
    return sizes[0]


def parts(value: Any, rows: int, count: int) -> list[Any]:
    """A pytree for each micro-batch: tensors of `rows` rows are cut as torch.tensor_split does, all else goes along
    as it is."""
    leaves, spec = tree_flatten(value)
    cut = [x.tensor_split(count) if is_batched(x, rows) else [x] * count for x in leaves]
    return [tree_unflatten([pieces[b] for pieces in cut], spec) for b in range(count)]


def is_batched(x: Any, rows: int) -> bool:
    return isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == rows


def joined(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What the model returned for each micro-batch as what it returns for the batch. Raises InputError where a tensor
    has no dimension of rows."""
    flat = [tree_flatten(value)[0] for value in values]
    spec = tree_flatten(values[0])[1]

    def join(pieces: Sequence[Any]) -> Any:
        if not isinstance(pieces[0], Tensor):
            return pieces[0]
        for piece, size in zip(pieces, sizes, strict=True):
            if not is_batched(piece, size):
                raise InputError(
                    f"the model returns a tensor {list(piece.shape)} for a micro-batch of {size} rows: without rows in "
                    f"dimension 0 those of the micro-batches cannot be joined; compute it in loss_fn, and use step()"
                )
        return torch.cat(list(pieces))

    return tree_unflatten([join(pieces) for pieces in zip(*flat, strict=True)], spec)


@dataclass(frozen=True)
class Share:
    """The loss of a micro-batch, weighted so that their sum is the batch's: a mean over rows by rows / B, by
    loss_weight's share where that is given, a sum as it is."""

    loss_fn: LossFunction | None  # None: the model returns its loss
    targets: Sequence[Any]
    weights: Sequence[float]

    def __call__(self, output: Any, batch: int) -> Tensor:
        if not self.weights[batch]:  # a mean over nothing is no number, and it counts for nothing
            return next(x for x in tree_leaves(output) if isinstance(x, Tensor)).new_zeros(())
        loss = output if self.loss_fn is None else self.loss_fn(output, self.targets[batch])
        if not (isinstance(loss, Tensor) and loss.dim() == 0):
            got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            whose = "the model returns" if self.loss_fn is None else "loss_fn gives"
            raise ArgumentError(f"{whose} {got}, and a step needs a loss, a tensor []; give loss_fn=, with a reduction")
        return loss * self.weights[batch]


def share(
    loss_fn: LossFunction | None, loss_weight: Callable[[Any], float] | None, targets: Sequence[Any], rows: list[int]
) -> Share:
    if loss_weight is not None:
        shares = [float(loss_weight(target)) for target in targets]
    elif getattr(loss_fn, "reduction", "mean") == "sum":
        return Share(loss_fn, targets, [1.0] * len(rows))
    else:
        shares = [float(size) for size in rows]
    total = sum(shares)
    return Share(loss_fn, targets, [s / total if total else s for s in shares])
