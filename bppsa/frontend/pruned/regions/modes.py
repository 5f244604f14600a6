"""Modes that a captured graph enters and leaves by nodes: `with torch.no_grad()`, autocast, inference mode.

Where an op raises in between, the nodes that leave them do not run: they are left here instead.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.amp import autocast_mode
from torch.autograd import grad_mode

from bppsa.errors import Unsupported
from bppsa.frontend.pruned.regions.nodes import located

LEAVE: dict[Callable[..., Any], Callable[[Any], Any]] = {
    autocast_mode._enter_autocast: autocast_mode._exit_autocast,
    grad_mode._enter_inference_mode: grad_mode._exit_inference_mode,
}
SETS_DATA = "_lower_version_count_by_1"  # a node that Dynamo writes after each
SETTERS = (torch._C._set_grad_enabled, *LEAVE.values())  # with LEAVE, all that enters or leaves one


def check_modes(graph: fx.Graph) -> None:
    """Raises Unsupported for nodes that change more of PyTorch's state than is restored here, and for higher-order ops,
    which run functions of their own."""
    for node in graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(graph.owning_module, str(node.target), None), fx.GraphModule):
            what = "a function that PyTorch runs as a whole (checkpoint, autograd.Function, cond, ...)"
            raise Unsupported(located(what, node))
        if getattr(node.target, "__name__", "") == SETS_DATA:  # Dynamo takes what setattr gives for a tensor
            raise Unsupported(located("an assignment to a tensor's .data within a forward", node))
        if node.op == "call_function" and changes_state(node.target):
            raise Unsupported(located(f"{node.target.__name__} within a forward", node))


def changes_state(function: Any) -> bool:
    """A function that nobody calls for what it returns."""
    if function in LEAVE or function in SETTERS:
        return False
    name, module = str(getattr(function, "__name__", "")), str(getattr(function, "__module__", ""))
    of_c = isinstance(function, types.BuiltinFunctionType) and module.startswith("torch._C")
    transforms = module.startswith(("torch._functorch", "torch._C._functorch"))
    return transforms or (of_c and name.startswith(("_set_", "set_", "_push", "_pop"))) or name.startswith("_enter_")


def leave_modes(known: dict[fx.Node, Any], grad: bool) -> None:
    """Leaves the modes entered by nodes of `known`, what those nodes gave whose value is yet to be read, and the grad
    mode."""
    for node in reversed(list(known)):
        if node.target in LEAVE:
            LEAVE[node.target](known[node])
    torch.set_grad_enabled(grad)
