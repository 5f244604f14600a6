"""Leaves of autograd, which a gradient is asked of, and those gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def wanting(x: Any) -> Any:
    """Returns a leaf of the same numbers that wants a gradient, where it may have one; what is no tensor as it is."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().requires_grad_(x.is_floating_point() or x.is_complex())


def wants_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def without_graph(x: Any) -> Any:
    """Returns a tensor cut off from its graph, which still says whether a gradient flows to it; all else as it is."""
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x


def gradients_through(
    function: Callable[[list[Any]], Sequence[Tensor]],
    tensors: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
    *,
    create_graph: bool,
) -> list[Tensor | None]:
    """Returns the gradients of the tensors that need one, through a function that is run on them again."""
    # views: of two of the tensors one may be computed from the other, and its share must not be counted twice
    views = [t if t is None else t.view_as(t) for t in tensors]
    return needed_gradients(function(views), cotangents, views, needs, create_graph=create_graph)


def needed_gradients(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    tensors: Sequence[Tensor | None],
    needs: Sequence[bool],
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> list[Tensor | None]:
    """Returns what autograd gives for the tensors that need a gradient; None for the others, and where nothing arrives.
    The options are those of `torch.autograd.grad`."""
    given = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if g is not None and y.requires_grad]
    wanted = {i: t for i, (t, need) in enumerate(zip(tensors, needs, strict=True)) if need and t is not None}
    result: list[Tensor | None] = [None] * len(tensors)
    if given and wanted:
        ends, grads = zip(*given, strict=True)
        options: dict[str, Any] = {"create_graph": create_graph, "retain_graph": retain_graph, "allow_unused": True}
        found = torch.autograd.grad(ends, list(wanted.values()), grads, **options)
        for i, gradient in zip(wanted, found, strict=True):
            result[i] = gradient
    return result
