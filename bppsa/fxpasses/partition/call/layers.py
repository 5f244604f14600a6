"""Which layer of PyTorch's an example does not fit, and in what: an error of a kernel names neither."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from bppsa.common.graph import paths_in
from bppsa.errors import first_line

Misfit = Callable[[Any, Tensor], str | None]


def of_axis(axis: Callable[[Any], int], what: str, attribute: str) -> Misfit:
    """The check of layers that take an input of this size along an axis."""

    def says(layer: Any, x: Tensor) -> str | None:
        at, wanted = axis(layer), getattr(layer, attribute)
        if not -x.dim() <= at < x.dim() or x.shape[at] == wanted:
            return None
        return f"its input has {x.shape[at]} {what}, {attribute} is {wanted}"

    return says


def of_tail(layer: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> str | None:
    wanted = list(layer.normalized_shape)
    tail = list(x.shape[-len(wanted) :])
    return None if tail == wanted else f"its input ends in {tail}, normalized_shape is {wanted}"


def of_index(layer: nn.Embedding, x: Tensor) -> str | None:
    if x.is_floating_point() or not x.is_cpu or not x.numel():
        return None
    for index in (int(x.max()), int(x.min())):
        if not 0 <= index < layer.num_embeddings:
            return f"its input holds {index}, and indices go from 0 to {layer.num_embeddings - 1}"
    return None


MISFITS: tuple[tuple[type | tuple[type, ...], Misfit], ...] = (
    (nn.Linear, of_axis(lambda layer: -1, "features", "in_features")),
    (nn.RNNBase, of_axis(lambda layer: -1, "features", "input_size")),
    (_ConvNd, of_axis(lambda layer: -1 - len(layer.kernel_size), "channels", "in_channels")),
    (_NormBase, of_axis(lambda layer: 1, "channels", "num_features")),
    (nn.GroupNorm, of_axis(lambda layer: 1, "channels", "num_channels")),
    ((nn.LayerNorm, nn.RMSNorm), of_tail),
    (nn.Embedding, of_index),
)


def layer_of(model: nn.Module, error: BaseException) -> str:
    """The layer of torch.nn that raised it, by its path, and why; "" where it was none of the model's."""
    paths = paths_in(model)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer = frame.f_locals.get("self")
        if frame.f_code.co_name != "forward" or not isinstance(layer, nn.Module):
            continue
        if id(layer) not in paths or not type(layer).__module__.startswith("torch.nn.") or [*layer.children()]:
            return ""
        why = misfit(layer, frame.f_locals.get("input")) or first_line(error)
        return f"{paths[id(layer)] or 'the model'} ({type(layer).__name__}): {why}"
    return ""


def misfit(layer: nn.Module, x: Any) -> str | None:
    """Tells in what the input does not fit; None where that is not known."""
    if not isinstance(x, Tensor):
        return None
    found = next((said for kind, of in MISFITS if isinstance(layer, kind) and (said := of(layer, x))), None)
    weight = getattr(layer, "weight", None)
    if found is None and isinstance(weight, Tensor) and x.is_floating_point() and x.dtype != weight.dtype:
        return f"its input is {x.dtype}, its weight {weight.dtype}"
    return found
