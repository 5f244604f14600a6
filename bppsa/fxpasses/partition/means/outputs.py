"""What is read of a model's outputs where its loss is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

FEW = 4  # rows


def own_loss(output: Any) -> Any:
    """What the model says is its loss: all that it returns, or a field or key of that name."""
    if isinstance(output, Mapping):
        return output.get("loss", output)
    return output if isinstance(output, Tensor) else getattr(output, "loss", output)


def few(outputs: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of an example for a few of its rows."""
    rows = next((len(x) for x in tree_leaves(list(arguments)) if isinstance(x, Tensor) and x.dim()), 0)
    return tuple(
        x.detach()[:FEW].clone() if isinstance(x, Tensor) and x.dim() and len(x) == rows else x for x in outputs
    )
