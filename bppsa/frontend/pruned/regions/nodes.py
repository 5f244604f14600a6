"""Questions about nodes of a graph that TorchDynamo has captured."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from bppsa.fxpasses.lines import place_of_trace, shown

INPLACE = frozenset(
    getattr(operator, f"i{name}")
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
) | {operator.setitem, operator.delitem}

SYMBOLIC = (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def is_leaf(node: Any) -> bool:
    """A tensor or number that the graph is given."""
    return isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr")


def is_parameter(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), nn.Parameter)


def is_counter(node: fx.Node) -> bool:
    """A number of the graph's own that is raised by one, such as a batch norm's `num_batches_tracked`, and that no
    region reads."""
    if (node.op, node.target, node.args[1:], node.kwargs) != ("call_method", "add_", (1,), {}):
        return False
    if node.users or not is_leaf(node.args[0]):
        return False
    value = node.args[0].meta.get("example_value")
    return isinstance(value, Tensor) and value.dtype is torch.int64 and value.dim() == 0


def writes(node: fx.Node) -> bool:
    """Whether it may write into memory that others see. Into whose is not asked: many an op gives a view of any of its
    arguments."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inplace = node.target in INPLACE or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    asked = node.kwargs.get("inplace") is True or any(argument is True for argument in node.args[1:])  # F.relu(x, True)
    return node.op.startswith("call_") and (inplace or asked or "out" in node.kwargs)


def run_node(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """Runs a node as PyTorch does. known: what the nodes that it reads gave."""
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert node.op == "call_function", node.op
    return node.target(*args, **kwargs)


def path_of(node: fx.Node) -> str:
    """The path of the module that the node is of, from the captured one on."""
    stack = node.meta.get("nn_module_stack") or {}
    source = next(reversed(stack.values()))[0] if stack else ""  # such as L['module'].blocks._modules['0']
    return re.sub(r"_modules\['([^']+)'\]", r"\1", source.removeprefix("L['module']")).strip(".")


def line_of(node: fx.Node) -> str:
    """ "file:line: text" of the user's line that the node is from; "" where it is not known."""
    place = place_of_trace(node.stack_trace or "")
    return shown(*place) if place else ""


def located(what: str, node: fx.Node) -> str:
    """It, with the user's line that the node is from."""
    line = line_of(node)
    return f"{line}: {what}" if line else what


def is_tally(node: fx.Node) -> bool:
    """A number that follows from those that the graph is given, and that this call does not read: `self.calls + 1`."""
    inputs = node.all_input_nodes
    return is_number(node) and leads_out(node) and all(is_number(x) and (is_leaf(x) or is_tally(x)) for x in inputs)


def is_number(node: fx.Node) -> bool:
    """One that the graph is given, or that Python's operators make of such; no tensor."""
    value = node.meta.get("example_value")
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and (
        is_leaf(node) or computes_with_numbers(node)
    )


def symbols_of(node: fx.Node) -> frozenset[Any]:
    """The symbols that TorchDynamo has for what differs between calls: a number, or some, or the sizes of a tensor."""
    from torch.fx.experimental.symbolic_shapes import free_symbols  # imports sympy

    value = node.meta.get("example_value")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return frozenset().union(*(free_symbols(x) for x in values if isinstance(x, SYMBOLIC)))


def leads_out(node: fx.Node) -> bool:
    """Whether nothing but the graph's output, and numbers of it, are computed from it."""
    out = [user.op == "output" or (is_number(user) and leads_out(user)) for user in node.users]
    return bool(out) and all(out)


def computes_with_numbers(node: fx.Node) -> bool:
    """An operator of Python's, or a function of torch on symbolic sizes."""
    return node.op == "call_function" and (
        getattr(node.target, "__module__", "") in ("_operator", "math") or node.target in (torch.sym_int, torch.sym_max)
    )


def format_of(node: fx.Node) -> torch.memory_format:
    """The memory format of what a node gave. Channels may come last, as in the input: somebody may ask, or see it by a
    view."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor) or value.dim() != 4 or value.shape[1] == 1:
        return torch.contiguous_format
    step = value.stride(1)
    return torch.channels_last if type(step) is int and step == 1 else torch.contiguous_format
