"""Add to a growing region the step that computes a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from bppsa.errors import Unsupported
from bppsa.frontend.pruned.regions.draft import Draft, RegionValue
from bppsa.frontend.pruned.regions.functions import FUNCTIONS, METHODS
from bppsa.frontend.pruned.regions.layers import LAYERS, refuse
from bppsa.frontend.pruned.regions.nodes import computes_with_numbers, is_counter, is_leaf, is_tally
from bppsa.frontend.pruned.regions.pointwise import pointwise
from bppsa.frontend.pruned.regions.products import is_masking

OF_AUTOGRAD = frozenset(("detach", "detach_", "requires_grad_", "retain_grad", "register_hook"))


def lay(draft: Draft, node: fx.Node) -> Any:
    """The value of `node`, with the step that computes it added to the draft. Raises Unsupported."""
    if node.op == "call_function" and node.target in LAYERS:
        return LAYERS[node.target](draft, node)
    if is_counter(node):
        return draft.count(node.args[0])
    if is_masking(node) or is_of_leaf(node) or is_tally(node):
        return draft.before(node)
    args, kwargs = map_arg((node.args, node.kwargs), draft.value_of)
    if computes_with_numbers(node) and not any(
        isinstance(x, (RegionValue, Tensor)) for x in tree_leaves((args, kwargs))
    ):
        return node.target(*args, **kwargs)
    table: Any = {"call_function": FUNCTIONS, "call_method": METHODS}.get(node.op, {})
    name = str(getattr(node.target, "__name__", node.target))
    if node.target in table:
        return with_known_arguments(table[node.target], name, draft, args, kwargs)
    refuse(name in OF_AUTOGRAD, f"{name} is for autograd")
    fn: Any = getattr(Tensor, name, None) if node.op == "call_method" else node.target
    refuse(not callable(fn) or (node.op == "call_function" and not is_torchs(fn)), f"no kernel for {name}")
    return pointwise(draft, name, fn, args, kwargs)


def is_of_leaf(node: fx.Node) -> bool:
    """A mask's conversion, or a number that the graph is given as a tensor."""
    return node.op == "call_method" and node.target in ("to", "item") and is_leaf(node.args[0])


def with_known_arguments(
    function: Callable[..., Any], name: str, draft: Draft, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Raises Unsupported for arguments of a form that the table's function does not know."""
    try:
        signature(function).bind(draft, *args, **kwargs)
    except TypeError as error:
        raise Unsupported(f"{name}: {error}") from error
    return function(draft, *args, **kwargs)


def is_torchs(fn: Any) -> bool:
    """Whether it is torch's, and no function or class of the user's, which may do more than it returns."""
    return str(getattr(fn, "__module__", "")).split(".")[0] in ("torch", "_operator")
