"""What Python may decide while a model is traced, and the check that it would decide so again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

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
    (len, torch.numel, torch.is_floating_point, torch.is_complex, F._none_or_dtype)
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


def asks_autograd(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1] in ASKED_OF_AUTOGRAD


def is_decidable(node: fx.Node) -> bool:
    """Whether the node's value, which holds no tensor, follows from shapes, dtypes, devices and numbers alone."""
    if node.op in ("get_attr", "call_module"):
        return False
    return (
        is_question(node)
        or node.target is leaf_of
        or all(source.meta.get("decidable", False) for source in node.all_input_nodes)
    )


def as_decided(value: Any, how: str | None, expected: Any = None, place: str = "") -> Any:
    """The value as Python reads it; how=None: it does not, in this mode of the model. Raises PartitionError where
    another was expected."""
    if how is None:
        return None
    found = CONVERSIONS[how](value)
    if expected is not None and found != expected:
        raise PartitionError(
            f"{place}: Python reads {found!r} here, and read {expected!r} for the example with which the model was "
            f"cut: what Python decides is decided then, and micro-batches have other sizes. Leave the number of rows "
            f"to tensors, or give example_inputs that are alike"
        )
    return found


def as_mode(training: bool, expected: bool, why: str) -> None:
    """Raises PartitionError where the model runs in a mode in which it could not be traced."""
    if training != expected:
        now, then = ("training", "evaluation") if training else ("evaluation", "training")
        raise PartitionError(f"the model was cut in {then} and runs in {now}, in which it cannot be cut: {why}")


CHECKS = (as_decided, as_mode)
