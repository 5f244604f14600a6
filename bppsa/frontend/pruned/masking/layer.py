"""The class of a layer that torch.nn.utils.prune has pruned: its weight times its mask is made when it is asked for.

A hook of torch.nn.utils.prune makes that product before each call of the layer. A region runs no layer and reads weight
and mask instead, so the hook does not run where it is the only one, and who asks for `layer.weight` (the layer's own
forward; pruning once more, which ranks by it; a histogram) gets the product of weight and mask as they are now.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from bppsa.frontend.pruned.masking.masks import is_pruning
from bppsa.frontend.pruned.masking.state import pruned_state
from bppsa.frontend.rewritten import Rewritten, put_before

NAMES = ("weight", "bias")
# Stands where torch.nn.utils.prune keeps a product, which has a history and could not be copied.
UNREAD = torch.empty(0)


def product(name: str) -> property:
    def get(self: Any) -> Any:
        if name in self._parameters:
            return self._parameters[name]
        original, mask = self._parameters.get(f"{name}_orig"), self._buffers.get(f"{name}_mask")
        own = self.__dict__
        if name not in own:
            raise AttributeError(name)
        if original is None or mask is None or name in (pruned_state(self).made or ()):
            return own[name]
        return mask.to(original.dtype) * original

    def put(self: Any, value: Any) -> None:
        made = pruned_state(self).made
        if made is not None and f"{name}_mask" in self._buffers:
            made.add(name)
        elif f"{name}_orig" in self._parameters and f"{name}_mask" in self._buffers:
            value = UNREAD
        self.__dict__[name] = value

    def delete(self: Any) -> None:
        del self.__dict__[name]

    return property(get, put, delete)


class PrunedLayer(Rewritten):
    weight, bias = map(product, NAMES)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        only_prunes = all(is_pruning(hook) for hook in self._forward_pre_hooks.values())
        if only_prunes and has_pytorchs_forward(self):  # nobody sets another weight than the product
            return super().__call__(*args, **kwargs) if has_other_hooks(self) else self.forward(*args, **kwargs)
        state = pruned_state(self)
        state.calls += 1  # a hook may call the layer again, and so may another thread
        if state.made is None:
            state.made = set()
        try:
            return super().__call__(*args, **kwargs)
        finally:
            state.calls -= 1
            if not state.calls:
                self.__dict__.update(dict.fromkeys(state.made or (), UNREAD))
                state.made = None


def has_pytorchs_forward(module: Any) -> bool:
    return "forward" not in module.__dict__ and module._bppsa_origin.forward.__module__.startswith("torch.")


def has_other_hooks(module: nn.Module) -> bool:
    """Than forward pre-hooks."""
    own = module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own or _has_any_global_hook())


def ask_for_products(root: nn.Module) -> None:
    """Asks all layers that are pruned so for products; those that they hold are let go."""
    for module in root.modules():
        held = [name for name in NAMES if f"{name}_mask" in module._buffers and name in module.__dict__]
        if held:
            put_before(module, PrunedLayer)
            module.__dict__.update(dict.fromkeys(held, UNREAD))
            pruned_state(module)
