"""Which weights are pruned (by torch.nn.utils.prune, a parametrization, a forward, `masks=`, or their own zeros), and
what a mask keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from bppsa.errors import ArgumentError, InputError, InputValueError, Unsupported
from bppsa.frontend.ordinary import is_plain
from bppsa.frontend.pruned.masking.masked import mask_given
from bppsa.frontend.rewritten import kind_of

PrunableLayer = nn.Conv2d | nn.Linear
LAYERS = (nn.Conv2d, nn.Linear)


def given_masks(model: nn.Module, masks: Mapping[str, Tensor] | None, sparse: str) -> dict[str, Tensor]:
    """The masks by name, checked, and with `sparse="auto"` those of all weights that have zeros.

    Raises ArgumentError for a name that is no weight of an nn.Conv2d or nn.Linear,
    InputError for a mask of another shape or dtype, and InputValueError where the weight is not zero outside of it.
    """
    found: dict[str, Tensor] = {}
    layers = {f"{path}.weight" if path else "weight": m for path, m in model.named_modules() if isinstance(m, LAYERS)}
    for name, mask in (masks or {}).items():
        if name not in layers:
            known = ", ".join(layers) or "none"
            raise ArgumentError(f"masks: {name!r} is no weight of an nn.Conv2d or nn.Linear; there are: {known}")
        weight = layers[name].weight
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.shape != weight.shape:
            what = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(f"masks: {name} needs a bool tensor of shape {list(weight.shape)}, not {what}")
        if kind_of(layers[name]) not in LAYERS:
            kind = kind_of(layers[name]).__name__
            raise ArgumentError(f"masks: {name} is of a {kind}, whose weight others may read; use torch.nn.utils.prune")
        if not has_own_weight(layers[name]):
            raise ArgumentError(f"masks: {name} has a mask or a parametrization of its own; use either")
        if weight.detach()[~mask].any():
            mend = f"set them to zero first: with torch.no_grad(): weight.mul_(mask) for {name}"
            raise InputValueError(f"masks: {name} is not zero outside of its mask; {mend}")
        found[name] = mask.cpu()
    if sparse == "auto":
        for name, layer in layers.items():
            own = kind_of(layer) in LAYERS and has_own_weight(layer)
            if name not in found and own and not layer.weight.all():
                found[name] = layer.weight.detach().cpu() != 0
    return found


def has_own_weight(layer: PrunableLayer) -> bool:
    return isinstance(layer._parameters.get("weight"), nn.Parameter)


def is_pruning(hook: object) -> bool:
    """A forward pre-hook of torch.nn.utils.prune, which computes the weight or bias that we read before its product."""
    return isinstance(hook, prune.BasePruningMethod) and hook._tensor_name in ("weight", "bias")


def is_masked(layer: PrunableLayer) -> bool:
    return "weight_mask" in layer._buffers or mask_given(layer) is not None or may_be_masked_by_parametrization(layer)


def may_be_masked_by_parametrization(layer: PrunableLayer) -> bool:
    """One of the parametrizations of its weight holds a buffer of zeros and ones, of the shape of what they are made
    of, which may be more than one tensor."""
    if not parametrize.is_parametrized(layer, "weight"):
        return False
    steps: Any = layer.parametrizations["weight"]  # type: ignore[index]
    shapes = {original.shape for original in steps.parameters(recurse=False)}
    return any(buffer.shape in shapes and may_be_mask(buffer) for buffer in steps.buffers())


def may_mask_in_forward(module: nn.Module) -> bool:
    """It holds a tensor of zeros and ones that has the shape of a weight, its own or that of a layer directly below."""
    weights = [x for part in (module, *module.children()) for x in part._parameters.values() if x is not None]
    shapes = {x.shape for x in weights if is_plain(x) and x.dim() > 1}
    held = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    masks = [x for x in held if isinstance(x, Tensor) and is_plain(x) and x.shape in shapes and may_be_mask(x)]
    return not all(map(is_triangle, masks))


def is_triangle(mask: Tensor) -> bool:
    """Whether it is one that tells which steps are past, as attention has them."""
    return mask.dim() == 2 and bool(torch.equal(mask, torch.ones_like(mask).tril()))


def may_be_mask(x: Tensor) -> bool:
    """Whether it holds zeros and ones alone, which the base of torch's `orthogonal` does not, and not only zeros."""
    if x.requires_grad or x.dtype is torch.bool or x.is_meta:
        return not x.requires_grad
    return bool(x.any()) and not bool(((x != 0) & (x != 1)).any())


def kept(masks: Sequence[Tensor], shape: torch.Size, path: str) -> Tensor:
    """bool, of the weight's shape: True where none of the masks is zero. Raises Unsupported for other values than 0 and
    1, and for another shape."""
    found = torch.ones(shape, dtype=torch.bool)
    for mask in masks:
        if mask.shape != shape:
            what = f"the mask of {path}.weight is {list(mask.shape)}, the weight {list(shape)}"
            raise Unsupported(what, mend="give the mask the weight's shape")
        bits = mask.detach() if mask.dtype is torch.bool else mask.detach() == 1
        if mask.dtype is not torch.bool and torch.count_nonzero(bits) != torch.count_nonzero(mask):
            raise Unsupported(f"the mask of {path}.weight has other values than 0 and 1", mend="use 0 and 1")
        found &= bits.cpu()
    return found
