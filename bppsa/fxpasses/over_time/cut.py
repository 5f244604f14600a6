"""From a recurrent model to its graph and recurrent layers, for chunks of its time axis."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only, tree_unflatten

from bppsa.errors import PartitionError, ScheduleError
from bppsa.fxpasses.over_time.trial import MEND, Mixed, tried
from bppsa.fxpasses.partition import trace_in_both_modes
from bppsa.fxpasses.partition.arguments import Arguments, flatten
from bppsa.fxpasses.partition.modules import first_names, names_of, stage_module
from bppsa.fxpasses.partition.order import facts
from bppsa.stages import Axes, Layer, OverTime, Stage

STEPS, ROWS = 12, 5  # of the examples that the model is traced and tried with
GUESSES = 16


class Alone(nn.Module):
    """A model that is one recurrent module: its call has to be a node."""

    def __init__(self, model: nn.RNNBase) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, input: Any, hx: Any = None) -> Any:
        return self.model(input, hx)


def over_time(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], chunks: int) -> OverTime:
    """args, kwargs: a call of the model. With some of its steps and rows the model is traced, and tried in chunks.

    Raises ScheduleError where the model is not recurrent, or where steps meet outside of its recurrent layers, with the
    module's path and the mend; PartitionError where it cannot be traced.
    """
    recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    if not recurrent:
        raise ScheduleError(f"{name(model)} has no nn.RNN, nn.GRU or nn.LSTM, whose time blelloch(K) could cut; {MEND}")
    root = Alone(model) if isinstance(model, nn.RNNBase) else model
    signature = inspect.signature(root.forward)
    given = flatten(signature, args, kwargs)
    leaves, spec = tree_flatten(list(given.values()))
    first: Mixed | PartitionError | None = None
    for axes in islice(guesses(leaves, int(recurrent[0].batch_first)), GUESSES):
        short = tree_unflatten([shortened(leaf, of) for leaf, of in zip(leaves, axes, strict=True)], spec)
        try:
            return cut(root, Arguments(signature, tuple(given), tuple(short)), axes, chunks)
        except (Mixed, PartitionError) as error:
            first = first or error
    raise first or ScheduleError(f"{name(model)} was called without a tensor that has steps; {MEND}")


def guesses(leaves: Sequence[Any], usual: int) -> Iterator[tuple[Axes, ...]]:
    """Where each argument may have its steps and rows, the most likely first. usual: the axis of time in an input of
    the first recurrent module."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]
    if not tensors:
        return
    longest = max(tensors, key=lambda leaf: leaf.numel())
    for axis in sorted(range(longest.dim()), key=lambda a: (a != usual, a)):
        steps = longest.shape[axis]
        across = int(axis == 0)
        rows = longest.shape[across] if longest.dim() > 1 else None
        yield from product(*(places(leaf, steps, rows, axis) for leaf in leaves))


def places(leaf: Any, steps: int, rows: int | None, usual: int) -> list[Axes]:
    if not isinstance(leaf, Tensor):
        return [Axes()]
    times: list[int | None] = [axis for axis in range(leaf.dim()) if leaf.shape[axis] == steps]
    times.sort(key=lambda axis: axis != usual)
    found = []
    for time in (*times, None):
        across = [a for a in (0, 1) if a != time and a < leaf.dim() and leaf.shape[a] == rows]
        if time is None and leaf.dim() == 3:
            across.reverse()  # a state, [L, B, n]
        found.append(Axes(time, across[0] if across else None))
    return found


def shortened(leaf: Any, axes: Axes) -> Any:
    """The first of its steps and rows."""
    for axis, most in ((axes.time, STEPS), (axes.rows, ROWS)):
        if axis is not None:
            leaf = leaf.narrow(axis, 0, min(most, leaf.shape[axis]))
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def cut(root: nn.Module, arguments: Arguments, axes: tuple[Axes, ...], chunks: int) -> OverTime:
    """axes: of each leaf of the arguments. Raises Mixed where steps are not there."""
    traced = trace_in_both_modes(root, arguments if not is_on_meta(root) else on_meta(arguments))
    graph = stage_module(root, traced.graph, traced.constants)
    calls = [node for node in graph.graph.nodes if node.op == "call_module" and is_recurrent(graph, node)]
    if not calls:
        raise ScheduleError(f"the forward of {name(root)} calls none of its recurrent modules; {MEND}")
    layers = tuple(layer for node in calls for layer in layers_of(graph, node))
    found = tried(graph, arguments.examples, axes)
    if found.rows is None:
        axes = tuple(Axes(of.time) for of in axes)
    draws = [(node.name, i) for i, node in enumerate(graph.graph.nodes) if facts(node).draws and node not in calls]
    names = names_of(graph, first_names(root.model if isinstance(root, Alone) else root))
    flops = sum(facts(node).flops for node in graph.graph.nodes) / (len(layers) * chunks)
    stage = Stage(graph, (), (), names, flops=flops, draws=tuple(draws))
    return OverTime(
        (stage,) * (len(layers) * chunks),
        (),
        len(arguments.names),
        arguments.bind,
        traced.assemble,
        chunks,
        layers,
        axes,
        tuple(Axes(*of) for of in zip(found.times, found.rows or [None] * len(found.times), strict=True)),
        tree_map(as_in, found.output, traced.examples),
    )


def is_on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def on_meta(arguments: Arguments) -> Arguments:
    return replace(arguments, examples=tree_map_only(Tensor, lambda x: x.to("meta"), arguments.examples))


def as_in(x: Any, example: Any) -> Any:
    return x.to(example.dtype) if isinstance(x, Tensor) else x


def name(model: nn.Module) -> str:
    return type(model.model if isinstance(model, Alone) else model).__name__


def is_recurrent(graph: fx.GraphModule, node: fx.Node) -> bool:
    return isinstance(graph.get_submodule(str(node.target)), nn.RNNBase)


def layers_of(graph: fx.GraphModule, node: fx.Node) -> list[Layer]:
    """Raises ScheduleError for a recurrent module whose chunks cannot follow each other."""
    path = str(node.target)
    module: Any = graph.get_submodule(path)
    kind = type(module).__name__
    if module.bidirectional:
        raise ScheduleError(
            f"{path} is a bidirectional {kind}, whose second direction begins at the end of time, where the first "
            f"ends: chunks would wait for each other; use bidirectional=False, or {MEND}"
        )
    if has_hooks(module):
        raise ScheduleError(
            f"{path} ({kind}) has hooks, which would see chunks of the call; remove them, set weights by "
            f"torch.nn.utils.parametrize, or {MEND}"
        )
    at, count = list(graph.graph.nodes).index(node), len(graph.graph.nodes)
    return [Layer(node.name, number, path, at + number * count) for number in range(module.num_layers)]


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
