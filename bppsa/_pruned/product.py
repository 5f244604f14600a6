"""What torch.nn.utils.prune has put in the place of a weight or bias: the product that a layer's own call makes anew.

A region reads Parameter and mask instead and runs no layer, so who asks the layer for it (pruning once more, which
ranks by it; a histogram) would find that of long ago. These layers compute it when they are asked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bppsa._pruned.rewritten import Rewritten, put_before

NAMES = ("weight", "bias")


def product(name: str) -> property:
    def get(self: Any) -> Any:
        own = self.__dict__
        if name in own["_parameters"]:
            return own["_parameters"][name]
        if name not in own:
            raise AttributeError(name)
        original, mask = own["_parameters"].get(f"{name}_orig"), own["_buffers"].get(f"{name}_mask")
        if original is None or mask is None or name in (own["_bppsa_made"] or ()):
            return own[name]
        return mask.to(original.dtype) * original

    def put(self: Any, value: Any) -> None:
        self.__dict__[name] = value
        if self.__dict__["_bppsa_made"] is not None:
            self.__dict__["_bppsa_made"].add(name)

    def delete(self: Any) -> None:
        del self.__dict__[name]

    return property(get, put, delete)


class Products(Rewritten):
    """_bppsa_made: names of those that its hooks have made for the call that is under way; None between calls."""

    _bppsa_made: set[str] | None
    weight, bias = map(product, NAMES)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_bppsa_made"] = set()
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self.__dict__["_bppsa_made"] = None


def ask_for_products(root: nn.Module) -> None:
    """Of all layers that are pruned so; the products that they hold are let go."""
    for module in root.modules():
        held = [name for name in NAMES if f"{name}_mask" in module._buffers and name in module.__dict__]
        if held:
            put_before(module, Products)
            module.__dict__.update(dict.fromkeys(held, torch.empty(0)), _bppsa_made=None)
