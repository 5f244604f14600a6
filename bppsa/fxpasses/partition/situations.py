"""What a graph was made for besides sizes: a model in another situation is another graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from bppsa.common.graph import modules_in, tensors_in
from bppsa.common.stages import Situation
from bppsa.fxpasses.partition.capture.whole import is_one_node


def situation_of(model: nn.Module, arguments: Sequence[Any]) -> Situation:
    """The modules that a graph calls as they are follow by themselves."""
    given = tensors_in(list(arguments))
    devices = sorted({"cpu", *filter(torch.amp.is_autocast_available, {x.device.type for x in given})})
    return Situation(
        tuple(module.training for module in opened(model)),
        (*(leaf.dtype for leaf in given), *sorted(dtypes_of(model), key=str)),
        tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices),
        form_of(arguments),
    )


def form_of(arguments: Sequence[Any]) -> str:
    """Flags and numbers are alike here: a graph is for one value of each, and says so."""
    leaves, spec = tree_flatten(list(arguments))
    return f"{spec} {[Tensor if isinstance(x, Tensor) else None if x is None else 'value' for x in leaves]}"


def opened(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose forward is in the graph."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        yield module
        waiting += [child for child in module._modules.values() if child is not None and not is_one_node(child)]


def dtypes_of(model: nn.Module) -> set[torch.dtype]:
    """The dtypes of its Parameters."""
    tables = [module._parameters for module in modules_in(model).values()]
    return {parameter.dtype for table in tables for parameter in table.values() if parameter is not None}
