"""What a graph was made for besides sizes: a model in another situation is another graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bppsa.common.graph import tensors_in
from bppsa.common.stages import Situation
from bppsa.fxpasses.partition.capture.whole import is_whole


def situation_of(model: nn.Module, arguments: Sequence[Any]) -> Situation:
    """The modules that a graph calls as they are follow by themselves."""
    given = tensors_in(list(arguments))
    devices = sorted({"cpu", *filter(torch.amp.is_autocast_available, {x.device.type for x in given})})
    return Situation(
        tuple(module.training for module in opened(model)),
        (*(leaf.dtype for leaf in given), *sorted({p.dtype for p in model.parameters()}, key=str)),
        tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices),
    )


def opened(module: nn.Module) -> Iterator[nn.Module]:
    """Those whose forward is in the graph."""
    yield module
    for child in module.children():
        if not is_whole(child):
            yield from opened(child)
