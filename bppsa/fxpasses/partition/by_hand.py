"""Modules of a model as its stages, in the order given."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.arguments import arguments_of, leaf_of
from bppsa.fxpasses.partition.effects import Watch
from bppsa.fxpasses.partition.kept import kept
from bppsa.fxpasses.partition.modules import first_names, names_of, stage_module
from bppsa.stages import INPUT, Stage, Stages, Value


def by_hand(
    model: nn.Module, modules: Sequence[nn.Module], example_inputs: Any, example_kwargs: Mapping[str, Any]
) -> Stages:
    """The first module takes the arguments, each other what the one before it returns: a tuple is one argument for
    each of its elements. What the last returns is the result.

    Raises PartitionError where a module is not part of the model.
    """
    paths = paths_of(model, modules)
    arguments = arguments_of(modules[0], example_inputs, example_kwargs)
    values = [Value(name, INPUT, (0,)) for name in arguments.names]
    inputs = range(len(values))
    args, kwargs = arguments.call(arguments.examples)
    stages, first = [], first_names(model)
    for s, (path, module) in enumerate(zip(paths, modules, strict=True)):
        with kept(model), torch.no_grad(), Watch() as watch:
            result = module(*args, **kwargs)
        graph = fx.Graph()
        received = [graph.placeholder(values[i].name.replace("[", "_").rstrip("]")) for i in inputs]
        given, named = arguments.call(received) if s == 0 else (received, {})
        call = graph.call_module(path, tuple(given), named)
        is_last = s == len(modules) - 1
        take = leaf_of if is_last else operator.getitem
        parts = tree_leaves(result) if is_last else list(result) if type(result) is tuple else None
        if parts is None:
            graph.output((call,))
            parts = [result]
        else:
            graph.output(tuple(graph.call_function(take, (call, i)) for i in range(len(parts))))
        outputs = range(0) if is_last else range(len(values), len(values) + len(parts))
        values += [Value(f"{call.name}_{i}", s, (s + 1,), size(part)) for i, part in zip(outputs, parts, strict=False)]
        held = stage_module(model, graph, {})
        draws = ((call.name, s),) if watch.draws else ()
        stages.append(Stage(held, tuple(inputs), tuple(outputs), names_of(held, first), 1, watch.flops, None, draws))
        inputs, args, kwargs = outputs, parts, {}
    spec = tree_flatten(result)[1]
    return Stages(
        tuple(stages),
        tuple(values),
        len(arguments.names),
        arguments.bind,
        lambda leaves: tree_unflatten(list(leaves), spec),
    )


def paths_of(model: nn.Module, modules: Sequence[nn.Module]) -> list[str]:
    paths = {id(module): path for path, module in model.named_modules()}
    for module in modules:
        if not paths.get(id(module)):
            raise PartitionError(
                f"stages names a {type(module).__name__} that is not a part of {type(model).__name__}; give its own "
                f"submodules, such as [model.encoder, model.decoder]"
            )
    return [paths[id(module)] for module in modules]


def size(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
