"""A recurrent module's call by PyTorch's own functions, a layer at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bppsa.frontend.rnn.spec import Spec
from bppsa.runtime.recurrent.scan.extent import Extent, Given


def by_pytorch(spec: Spec, training: bool, extent: Extent, tensors: Given) -> tuple[Tensor, ...]:
    """The call by torch._VF, a layer at a time, for whoever differentiates twice. x: [T, B, I], padded if packed."""
    directions = spec.directions
    x, given, rest = tensors[0], tensors[1 : 1 + spec.states], tensors[1 + spec.states :]
    count = spec.weights * directions
    masks = rest[count * spec.layers :]
    finals: list[Sequence[Tensor]] = []
    for layer in range(spec.layers):
        weights = rest[layer * count : (layer + 1) * count]
        initial = [None if s is None else s[layer * directions : (layer + 1) * directions] for s in given]
        x, *final = layer_by_pytorch(spec, training, extent, x, initial, weights)
        x = x * masks[layer] if layer < len(masks) else x
        finals.append(final)
    return (x, *(torch.cat(state) for state in zip(*finals, strict=True)))


def layer_by_pytorch(
    spec: Spec, training: bool, extent: Extent, x: Tensor, given: Given, weights: Sequence[Tensor]
) -> Sequence[Tensor]:
    """y and the last states of one layer, all directions. given: initial states [D, B, n] each, or None."""
    function = getattr(torch._VF, spec.mode.lower())
    states = [
        x.new_zeros(spec.directions, extent.rows, width) if s is None else s
        for s, width in zip(given, spec.widths, strict=True)
    ]
    hx = states if spec.states > 1 else states[0]
    flags = (spec.bias, 1, 0.0, training, spec.bidirectional)
    if extent.lengths is None:
        return function(x, hx, list(weights), *flags, False)
    data, batch_sizes = torch._VF._pack_padded_sequence(x, extent.lengths, False)
    data, *final = function(data, batch_sizes, hx, list(weights), *flags)
    return torch._VF._pad_packed_sequence(data, batch_sizes, False, 0.0, extent.steps)[0], *final


def in_one(weights: Sequence[Tensor]) -> list[Tensor]:
    """Copies side by side in one tensor, matrices first, as cuDNN wants them: a layer's are not, in a module of
    several."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i].dim())
    flat = torch.cat([weights[i].reshape(-1) for i in order]).split([weights[i].numel() for i in order])
    views = dict(zip(order, flat, strict=True))
    return [views[i].view(weight.shape) for i, weight in enumerate(weights)]
