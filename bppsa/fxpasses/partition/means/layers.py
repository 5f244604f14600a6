"""Whether a layer of PyTorch's that is called as a whole treats rows one by one, as far as its class tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import activation, dropout
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.loss import _Loss

from bppsa.fxpasses.partition.capture.whole import HOOKS

# Layers that work along a dimension that they are told, or whose place depends on how many there are.
ALONG = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.GLU, nn.MultiheadAttention)
ANYWHERE = tuple(
    {
        *(cls for name in activation.__all__ if (cls := getattr(activation, name)) not in ALONG),
        *(getattr(dropout, name) for name in dropout.__all__ if name[-1] != "d"),
        *(nn.Identity, nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm),
    }
)
BATCHED = re.compile(r"(?:Conv|Pool|Norm|Pad|Dropout|Upsample|Transpose)([123])d$")  # and over how many dimensions
SEQUENCES: Mapping[type[nn.Module], Callable[[Any], bool]] = {
    nn.RNNBase: lambda layer: layer.batch_first,
    nn.MultiheadAttention: lambda layer: layer.batch_first,
    nn.TransformerEncoderLayer: lambda layer: layer.self_attn.batch_first,
    nn.TransformerDecoderLayer: lambda layer: layer.self_attn.batch_first,
}


def is_apart(layer: nn.Module, at: int, dimensions: int, norms: bool) -> bool | None:
    """None where its class does not tell.

    at: where rows are in the first tensor that it is given, which has so many dimensions. norms: whether those of the
    batch are taken to: a model's own normalise by micro-batch.
    """
    if "forward" in vars(layer) or any(vars(layer)[name] for name in HOOKS):
        return None
    if isinstance(layer, ANYWHERE):
        return True
    for cls, first in SEQUENCES.items():
        if isinstance(layer, cls):
            return dimensions == 3 and at == (0 if first(layer) else 1)
    if isinstance(layer, _NormBase) and not isinstance(layer, _InstanceNorm):
        return at == 0 and (norms or not (layer.training or layer.running_mean is None))
    if isinstance(layer, (_Loss, nn.GroupNorm)):
        return True if at == 0 else None
    spatial = BATCHED.search(type(layer).__name__)
    return True if spatial and at == 0 and dimensions == int(spatial[1]) + 2 else None
