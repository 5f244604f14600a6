"""What a loss function gives beside the loss: of each micro-batch, put together for the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_structure

from bppsa.distributed.batch.batches import is_batched, joined
from bppsa.fxpasses.partition.losses.outputs import stated_loss


def split_loss(value: Any) -> tuple[Any, Any]:
    """The loss and the rest: of (loss, metrics), of a mapping with the key loss, and of what has a field of that name;
    None where there is no rest."""
    if isinstance(value, Mapping) and "loss" in value:
        return value["loss"], {key: one for key, one in value.items() if key != "loss"} or None
    if isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "loss"):
        return value.loss, {name: getattr(value, name) for name in value._fields if name != "loss"} or None
    if isinstance(value, tuple) and value:
        loss, *rest = value
        return loss, (rest[0] if len(rest) == 1 else tuple(rest)) if rest else None
    return stated_loss(value), None


def gathered(metrics: Mapping[int, Any], sizes: Sequence[int]) -> Any:
    """The metrics of the batch, from those of micro-batches in their order. sizes: their rows.

    Where all give a tensor with their rows in dimension 0, these are concatenated; numbers and tensors [] become a
    tensor [micro-batches]; anything else is a list. None where there are none.
    """
    order = sorted(metrics)
    if not order:
        return None
    values = [metrics[b] for b in order]
    if any(tree_structure(value) != tree_structure(values[0]) for value in values):
        return values
    return joined(values, [sizes[b] for b in order], metric_of)


def metric_of(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    if all(is_batched(x, size) for x, size in zip(values, sizes, strict=True)):
        return torch.cat(list(values))
    if all(isinstance(x, Tensor) and not x.dim() for x in values):
        return torch.stack(list(values))
    if all(isinstance(x, (bool, int, float)) for x in values):
        return torch.tensor(values)
    return list(values)
