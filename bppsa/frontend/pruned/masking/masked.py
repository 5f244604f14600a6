"""A layer whose mask was given (`masks=`, `sparse="auto"`): the weight counts where the mask is true, whoever runs it.

What is elsewhere in the Parameter is read as zero and has a zero gradient, as with torch.nn.utils.prune, whatever an
optimizer, a loaded state or an assignment has left there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bppsa.decisions import RECORD
from bppsa.frontend.pruned.masking.state import pruned_state
from bppsa.frontend.rewritten import Rewritten, put_before


class Masked(Rewritten):
    def forward(self, input: Tensor) -> Any:
        layer: Any = self
        mask = pruned_state(self).mask
        assert mask is not None
        weight = torch.where(mask.to(layer.weight.device), layer.weight, 0.0)
        if isinstance(self, nn.Conv2d):
            return self._conv_forward(input, weight, self.bias)
        return F.linear(input, weight, layer.bias)


def give_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """masks: by the names of the weights of nn.Conv2d and nn.Linear; in addition to what was given before."""
    for name, mask in masks.items():
        layer = model.get_submodule(name.rpartition(".")[0])
        before = mask_given(layer)
        put_before(layer, Masked)
        pruned_state(layer).mask = mask if before is None else mask & before


def mask_given(layer: nn.Module) -> Tensor | None:
    own = layer.__dict__.get(RECORD)
    return own.pruned.mask if own is not None and own.pruned is not None else None
