"""The module of a stage: a graph, and the model's own modules, parameters and buffers at the model's paths.

These are below a module of their own: a GraphModule has attributes, such as `code`, that a model may have too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn

ROOT = "model"


def stage_module(model: nn.Module, graph: fx.Graph, constants: Mapping[str, Tensor], below: str = "") -> fx.GraphModule:
    """constants: by name, what the model does not have. They become buffers. below: the name of the module of their
    own, "" for none; the graph is given the new paths."""
    module = fx.GraphModule(nn.Module(), fx.Graph())
    root: nn.Module = nn.Module() if below else module
    if below:
        module.add_module(below, root)
    module.training = root.training = model.training
    calls, reads = graph.find_nodes(op="call_module"), graph.find_nodes(op="get_attr")
    called = {node.target for node in calls}
    for path in sorted(called):
        install(root, path, model.get_submodule(path))
    for path in sorted({node.target for node in reads}):
        parents = (path[:i] for i, sign in enumerate(path) if sign == ".")
        if path in constants:
            install(module, path, constants[path])
        elif called.isdisjoint(parents):
            install(root, path, operator.attrgetter(path)(model))
    for node in (*calls, *reads):
        if below and node.target not in constants:
            node.target = f"{below}.{node.target}"
    module.graph = graph
    return module


def install(module: nn.Module, path: str, found: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(module, parent):
            module.add_module(parent, nn.Module())
        module = getattr(module, parent)
    if isinstance(found, Tensor) and not isinstance(found, nn.Parameter):
        module.register_buffer(name, found, persistent=False)
    else:
        setattr(module, name, found)


def first_names(model: nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by its id."""
    return {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def names_of(module: nn.Module, first: Mapping[int, str]) -> dict[str, str]:
    """The model's first name of each parameter and buffer of a stage. A constant has none."""
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in held if id(tensor) in first}
