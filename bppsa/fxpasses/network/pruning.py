"""Weights pruned by torch.nn.utils.prune: a hook makes `weight` from `weight_orig` and `weight_mask` before each call.

The hooks run for real, so that `module.weight` is what PyTorch would leave there; a recording sees their result as a
tensor of the model, and its mask tells which entries of J^T there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod

from bppsa.sparsity.links import NodeMasks

aten = torch.ops.aten

# op -> the mask of its result from those of its arguments; a weight reaches its product by no other ops
MASKS: dict[Any, Callable[..., Tensor]] = {
    aten.t.default: lambda mask: mask.t(),
    aten.detach.default: lambda mask: mask,
    aten.mul.Tensor: torch.logical_and,
}


@dataclass(frozen=True)
class PrunedWeight:
    """`name` of `module`."""

    module: nn.Module
    name: str

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.module.__dict__[self.name]
        return weight

    @property
    def mask(self) -> Tensor:
        return self.module.get_buffer(f"{self.name}_mask")


def hooks_of(module: nn.Module) -> dict[int, BasePruningMethod]:
    return {key: hook for key, hook in module._forward_pre_hooks.items() if isinstance(hook, BasePruningMethod)}


def pruned(model: nn.Module) -> list[PrunedWeight]:
    return [
        PrunedWeight(module, hook._tensor_name)
        for module in model.modules()
        if module._forward_pre_hooks
        for hook in hooks_of(module).values()
    ]


def make_weights(found: list[PrunedWeight]) -> None:
    """What the hooks do before a call."""
    for part in found:
        for hook in hooks_of(part.module).values():
            hook(part.module, None)


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Calls within leave pruned weights as they are."""
    removed: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        hooks = module._forward_pre_hooks
        if hooks and hooks_of(module):
            removed.append((hooks, dict(hooks)))
            for key in hooks_of(module):
                del hooks[key]
    try:
        yield
    finally:
        for hooks, before in removed:
            hooks.clear()
            hooks.update(before)


def carried(graph: fx.Graph, masks: NodeMasks) -> NodeMasks:
    """The masks of these nodes, and of what the graph makes of them."""
    known = dict(masks)

    def of(node: fx.Node) -> Tensor:
        return known[node] if node in known else torch.ones_like(node.meta["val"], dtype=torch.bool)

    for node in graph.nodes:
        if node.target in MASKS and any(argument in known for argument in node.all_input_nodes):
            known[node] = MASKS[node.target](*map(of, node.all_input_nodes))
    return known
