"""Walks over graphs of torch.fx and over modules, nodes that know their value, and the tensors or nodes in
a nest of containers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves


def ancestors(roots: Iterable[fx.Node], within: Callable[[fx.Node], bool] = lambda node: True) -> set[fx.Node]:
    """`roots` and all that they are computed from, down to the nodes that are not `within`."""
    found, waiting = set[fx.Node](), list(roots)
    while waiting:
        node = waiting.pop()
        if node not in found and within(node):
            found.add(node)
            waiting += node.all_input_nodes
    return found


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node, run on the values in `meta["val"]` of those that it reads."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda arg: arg.meta["val"]), **kwargs)
    return node


def run(graph: fx.Graph, values: dict[fx.Node, Any]) -> None:
    """Adds the values of the ops to those of what they read."""
    for node in graph.nodes:
        if node.op == "call_function":
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)


def modules_in(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules by each of their paths, in PyTorch's order, whose own walks take several times as long."""
    found, waiting = dict[str, nn.Module](), [("", model)]
    while waiting:
        path, module = waiting.pop()
        found[path] = module
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        waiting += [(f"{path}.{name}" if path else name, child) for name, child in reversed(children)]
    return found


def paths_in(model: Any) -> dict[int, str]:
    """Returns the paths of a model's modules, by their ids; nothing for what is no module."""
    return {id(module): path for path, module in model.named_modules()} if isinstance(model, nn.Module) else {}


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def nodes_in(tree: Any) -> list[fx.Node]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, fx.Node)]


def differentiable_in(tree: Any) -> list[Tensor]:
    """The tensors that require a gradient."""
    return [x for x in tensors_in(tree) if x.requires_grad]
