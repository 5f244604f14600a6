"""What Python may decide while a model is traced, and the check that it would decide so again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import leaf_of

# Of a tensor: what depends on neither its values nor on autograd.
ASKED_BY_METHOD = frozenset(
    (
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device", "is_contiguous"),
        *("is_floating_point", "is_complex", "is_signed", "type"),
    )
)
ASKED_BY_FUNCTION: frozenset[Any] = frozenset(
    (len, torch.numel, torch.is_floating_point, torch.is_complex, torch.is_tensor)
)
ASKED_OF_AUTOGRAD = frozenset(("requires_grad", "grad", "grad_fn", "is_leaf", "retains_grad"))
CONVERSIONS: dict[str, Callable[[Any], Any]] = {"bool": bool, "index": operator.index, "int": int, "float": float}


def is_question(node: fx.Node) -> bool:
    """Whether the node asks a tensor for its shape, dtype or device."""
    if node.op == "call_method":
        return node.target in ASKED_BY_METHOD
    if node.target is getattr:
        return node.args[1] not in ASKED_OF_AUTOGRAD
    return node.target in ASKED_BY_FUNCTION


def is_decidable(node: fx.Node, value: Any) -> bool:
    """Whether the node's value, which holds no tensor, follows from shapes, dtypes, devices and numbers alone."""
    if node.op in ("get_attr", "call_module"):
        return False
    return (
        is_question(node)
        or node.target is leaf_of
        or all(source.meta.get("decidable", False) for source in node.all_input_nodes)
    )


def as_decided(value: Any, how: str, expected: Any = None, place: str = "") -> Any:
    """The value as Python reads it. Raises PartitionError where another was expected."""
    found = CONVERSIONS[how](value)
    if expected is not None and found != expected:
        raise PartitionError(
            f"{place} depends on {how} {found!r}, which was {how} {expected!r} for the example that the model was "
            f"partitioned with; keep decisions apart from the size of the batch, or partition for such inputs"
        )
    return found
