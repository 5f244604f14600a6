"""What an op tells of its result: whether it reads values, makes memory, or takes an option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from bppsa.common.chain import FILLS

aten = torch.ops.aten
CHECK = "check_errors"  # the option of ops that raise errors for some matrices
READS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def has_option(target: Any, name: str) -> bool:
    return isinstance(target, OpOverload) and any(argument.name == name for argument in target._schema.arguments)


def reads_values(func: Any, args: Sequence[Any]) -> bool:
    """Whether the result, or its shape, is one of the stand-ins' and would not hold for other values."""
    if func is aten.index.Tensor:  # numbers pick rows whatever they are, a mask picks as many as it is true
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not READS_VALUES.isdisjoint(func.tags)


def is_made_anew(node: fx.Node) -> bool:
    """Whether what the node gives is made of sizes and numbers alone, as torch.eye's is: it has no gradient."""
    return node.op == "call_function" and (not node.all_input_nodes or node.target in FILLS)


def makes_memory(node: fx.Node) -> bool:
    """Whether what the node gives shares its memory with nothing that it reads."""
    schema = getattr(node.target, "_schema", None)
    unsaid = node.target is aten._unsafe_view.default  # which is a view all the same
    return schema is not None and not unsaid and all(given.alias_info is None for given in schema.returns)
