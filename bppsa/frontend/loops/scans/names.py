"""What a message calls the tensors of a call: what its user calls them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bppsa.frontend.loops.scans.verify import TensorNames
from bppsa.fxpasses.environment.libraries import owner


def names_of(
    returns: Any, tensors: Sequence[Tensor], root: Any, plain: Callable[..., Any], args: Any, kwargs: Any
) -> TensorNames:
    """Names what a call returns, and the tensors: arguments of `plain`, and parameters of the module that it is of."""
    known: dict[int, str] = {}
    module = owner(root)
    if isinstance(module, nn.Module):
        known |= {id(tensor): name for name, tensor in (*module.named_buffers(), *module.named_parameters())}
    for name, value in by_parameter(plain, args, kwargs).items():
        known |= {id(leaf): f"{name}{path}" for path, leaf in paths(value)}
    outputs = [f"output{path}" for path, leaf in paths(returns) if isinstance(leaf, Tensor)]
    return TensorNames(outputs, [known.get(id(x), f"a tensor of {list(x.shape)}") for x in tensors])


def by_parameter(function: Callable[..., Any], args: Any, kwargs: Any) -> Mapping[str, Any]:
    """The arguments of a call by the function's own names for them."""
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # as of what is written in C
        return kwargs


def paths(value: Any) -> list[tuple[str, Any]]:
    """The leaves of a container, and how they are found in it, where its class tells."""
    try:
        return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0]]
    except ValueError:  # of a class that is registered without the names of what its objects hold
        return [(f"[{i}]", leaf) for i, leaf in enumerate(pytree.tree_leaves(value))]
