"""The module of a stage: a graph, and the model's own modules, parameters and buffers at the model's paths."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn


def stage_module(model: nn.Module, graph: fx.Graph, constants: Mapping[str, Tensor]) -> fx.GraphModule:
    """constants: by path, what the model does not have. They become buffers."""
    module = fx.GraphModule(nn.Module(), fx.Graph())
    module.training = model.training
    called = {node.target for node in graph.find_nodes(op="call_module")}
    for path in sorted(called):
        install(module, path, model.get_submodule(path))
    for path in sorted({node.target for node in graph.find_nodes(op="get_attr")}):
        parents = (path[:i] for i, sign in enumerate(path) if sign == ".")
        if called.isdisjoint(parents):
            install(module, path, constants[path] if path in constants else operator.attrgetter(path)(model))
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
    """By id of each parameter and buffer."""
    return {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def names_of(module: nn.Module, first: Mapping[int, str]) -> dict[str, str]:
    """Of each parameter and buffer of a stage, the model's first name. A constant has none."""
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in held if id(tensor) in first}
