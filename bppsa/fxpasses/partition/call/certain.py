"""Runs in which nothing is left to chance, so that parts of a batch can be compared with the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from bppsa.common.stages import draws
from bppsa.fxpasses.theirs import theirs

aten = torch.ops.aten


class Certain(TorchDispatchMode):
    """What is drawn within the block is one half, and dropout lets all through."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        out = theirs(func, *args, **kwargs)
        return tree_map_only(torch.Tensor, lambda t: t.fill_(0.5), out) if draws(func, args, kwargs) else out
