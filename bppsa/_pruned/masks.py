"""Where a layer's weight and its mask are: torch.nn.utils.prune, a parametrization, `masks=`, or its own zeros.

Whatever holds them is asked again in each call, so masks may change (iterative pruning, SET, RigL), and modules may
move to another dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from bppsa._pruned.masked import mask_given
from bppsa._pruned.rewritten import kind_of
from bppsa.errors import ArgumentError, InputError, InputValueError, Reason, Unsupported
from bppsa.fxpasses.capture import record

aten = torch.ops.aten
Layer = nn.Conv2d | nn.Linear
LAYERS = (nn.Conv2d, nn.Linear)
_version = attrgetter("_version")
_factors: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # by parametrization


def given_masks(model: nn.Module, masks: Mapping[str, Tensor] | None, sparse: str) -> dict[str, Tensor]:
    """The masks by name, checked, and with `sparse="auto"` those of all weights that have zeros.

    Raises ArgumentError for what is no mapping and for a name that is no weight of an nn.Conv2d or nn.Linear,
    InputError for a mask of another shape or dtype, and InputValueError where the weight is not zero outside of it.
    """
    if not isinstance(masks, Mapping | None):
        takes = 'a mapping from names of weights to bool tensors, such as {"features.0.weight": mask}'
        raise ArgumentError(f"masks= takes {takes}, not a {type(masks).__name__}")
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


def has_own_weight(layer: Layer) -> bool:
    return isinstance(layer._parameters.get("weight"), nn.Parameter)


@dataclass(frozen=True, eq=False)
class Weight:
    """A Parameter; an element counts where none of the masks is zero."""

    parameter: nn.Parameter
    masks: tuple[Tensor, ...]

    def has_masks_of(self, other: Weight) -> bool:
        return len(self.masks) == len(other.masks) and all(a is b for a, b in zip(self.masks, other.masks, strict=True))


def marks(masks: Sequence[Tensor]) -> list[int]:
    """What tells whether any of them has been changed in place, or given other memory."""
    return [*map(_version, masks), *map(Tensor.data_ptr, masks)]


def weight_of(layer: Layer) -> Weight:
    """Raises Unsupported where the weight is anything but a Parameter times a mask whose changes can be noticed."""
    found = product_of(layer)
    if any(mask.is_inference() for mask in found.masks):
        what = "its mask is from torch.inference_mode(), where changes in place leave no trace"
        raise Unsupported(Reason(what, mend="prune outside of it"))
    return found


def product_of(layer: Layer) -> Weight:
    mask_of_ours = mask_given(layer)
    given = () if mask_of_ours is None else (mask_of_ours,)
    if has_own_weight(layer):
        return Weight(layer._parameters["weight"], given)  # type: ignore[arg-type]
    original, mask = layer._parameters.get("weight_orig"), layer._buffers.get("weight_mask")
    if original is not None and mask is not None:
        return Weight(original, (mask, *given))
    if parametrize.is_parametrized(layer, "weight"):
        steps: Any = layer.parametrizations["weight"]  # type: ignore[index]
        if len(steps) == 1 and isinstance(steps.original, nn.Parameter):
            return Weight(steps.original, (mask_of(steps[0], steps.original), *given))
    if layer._parameters.get("weight") is not None:
        raise Unsupported(Reason("another tensor is there for its weight (torch.func.functional_call)"))
    raise Unsupported(Reason("its weight is not a Parameter times a mask", mend="use torch.nn.utils.prune"))


def parameter_of(module: nn.Module, name: str) -> Tensor | None:
    """A weight or bias that needs no mask of its own, by its product where torch.nn.utils.prune holds one."""
    original, mask = module._parameters.get(f"{name}_orig"), module._buffers.get(f"{name}_mask")
    if original is not None and mask is not None:  # what the module has under `name` is from its last own call
        return original * mask
    found: Tensor | None = getattr(module, name)
    return found


def mask_of(parametrization: nn.Module, weight: Tensor) -> Tensor:
    """The buffer that a parametrization multiplies the weight with, as it is now."""
    name = _factors.get(parametrization)
    if name is None:
        name = _factors[parametrization] = factor(parametrization, weight)
    return parametrization.get_buffer(name)


def factor(parametrization: nn.Module, weight: Tensor) -> str:
    """The name of that buffer; what the parametrization computes is recorded to find it."""
    recording = record(parametrization, (weight.detach(),))
    node, (argument,), captured = recording.result, recording.arguments, {n: t for t, n in recording.captured}
    if node in argument.users and node.target is aten.mul.Tensor:
        other = next((captured[n] for n in node.args if n in captured), None)
        for name, buffer in parametrization.named_buffers():
            if buffer is other and buffer.shape == weight.shape:
                return name
    raise Unsupported(Reason("its parametrization is not a product with a buffer", mend="use torch.nn.utils.prune"))


def is_pruning(hook: object) -> bool:
    """A forward pre-hook of torch.nn.utils.prune, which computes the weight or bias that we read before its product."""
    return isinstance(hook, prune.BasePruningMethod) and hook._tensor_name in ("weight", "bias")


def is_masked(layer: Layer) -> bool:
    own = "weight_mask" in layer._buffers or parametrize.is_parametrized(layer, "weight")
    return own or mask_given(layer) is not None


def kept(weight: Weight, path: str) -> Tensor:
    """bool, True where a weight is kept. Raises Unsupported for a mask of other values than 0 and 1."""
    shape = weight.parameter.shape
    found: Tensor | None = None
    for mask in weight.masks:
        bits = mask.detach() if mask.dtype is torch.bool else mask.detach() == 1
        if mask.dtype is not torch.bool and torch.count_nonzero(bits) != torch.count_nonzero(mask):
            raise Unsupported(Reason(f"the mask of {path}.weight has other values than 0 and 1", mend="use 0 and 1"))
        if mask.shape != shape:
            what = f"the mask of {path}.weight is {list(mask.shape)}, the weight {list(shape)}"
            raise Unsupported(Reason(what, mend="give the mask the weight's shape"))
        found = bits.cpu() if found is None else found & bits.cpu()
    return torch.ones(shape, dtype=torch.bool) if found is None else found
