"""From a recurrent model to its graph and recurrent layers, for chunks of its time axis."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from bppsa.common.stages import Axes, OverTime, Stage
from bppsa.errors import InputError, PartitionError, ScheduleError
from bppsa.fxpasses.over_time.examples import guesses, is_one_step, shortened
from bppsa.fxpasses.over_time.layers import is_recurrent, layers_of
from bppsa.fxpasses.over_time.verdict import MEND, FoundAxes, Mixed, packed, tried
from bppsa.fxpasses.partition.call.arguments import Arguments, flatten, shapes_of
from bppsa.fxpasses.partition.call.kept import is_on_meta, kept
from bppsa.fxpasses.partition.call.refusals import BY_HAND, WHAT_FORWARDS_RAISE
from bppsa.fxpasses.partition.capture.captured import captured
from bppsa.fxpasses.partition.capture.graph import CapturedGraph
from bppsa.fxpasses.partition.cut.modules import first_names, names_of, stage_module
from bppsa.fxpasses.partition.ops.effects import facts
from bppsa.fxpasses.partition.situations import situation_of
from bppsa.fxpasses.theirs import raise_if_ours, theirs

CUTS = "blelloch(K) cuts calls of nn.RNN, nn.GRU and nn.LSTM, in a forward that torch.export can see"


class Alone(nn.Module):
    """A model that is one recurrent module: its call has to be a node."""

    def __init__(self, model: nn.RNNBase) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, input: Any, hx: Any = None) -> Any:
        return theirs(self.model, input, hx)


def over_time(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], chunks: int) -> OverTime:
    """args, kwargs: a call of the model. With some of its steps and rows the model is traced, and tried in chunks.

    Raises ScheduleError where the model is not recurrent, or where steps meet outside of its recurrent layers, with the
    module's path and the mend; PartitionError where it cannot be traced; InputError where one step is all there is.
    """
    recurrent = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    if not recurrent:
        raise ScheduleError(f"{name(model)} has no nn.RNN, nn.GRU or nn.LSTM, whose time blelloch(K) could cut; {MEND}")
    if any(map(is_packed, tree_leaves((args, kwargs), is_leaf=is_packed))):
        raise packed(recurrent[0][0] or name(model))
    root = Alone(model) if isinstance(model, nn.RNNBase) else model
    signature = inspect.signature(root.forward)
    given = flatten(signature, args, kwargs)
    leaves, spec = tree_flatten(list(given.values()))
    tries = list(guesses(leaves, [module for _, module in recurrent]))
    first: Mixed | PartitionError | None = None
    for axes in tries:
        short = tree_unflatten([shortened(leaf, of) for leaf, of in zip(leaves, axes, strict=True)], spec)
        try:
            found = cut(root, Arguments(signature, tuple(given), tuple(short)), axes, chunks)
            return replace(
                found,
                shapes=shapes_of(leaves),
                situation=situation_of(model, list(given.values())),
                again=partial(over_time_again, chunks, Arguments(signature, tuple(given), ())),
            )
        except (Mixed, PartitionError) as error:
            first = first or error
    if tries and is_one_step(leaves, tries[0]):
        raise InputError(
            f"{name(model)} was to be cut for a call of one step, which shows nothing of time; call it with two steps "
            f"or more first, or give such example_inputs="
        ) from first
    raise first or ScheduleError(f"{name(model)} was called without a tensor that has steps; {MEND}")


def over_time_again(chunks: int, arguments: Arguments, model: nn.Module, values: Sequence[Any]) -> OverTime:
    """The model as it is now, as in evaluation. values: of the arguments, as `bind` gives them."""
    args, kwargs = arguments.call(values)
    return over_time(model, args, kwargs, chunks)


def cut(root: nn.Module, arguments: Arguments, axes: tuple[Axes, ...], chunks: int) -> OverTime:
    """axes: of each leaf of the arguments. Raises Mixed where steps are not there."""
    traced = graph_of(root, arguments)
    graph = stage_module(root, traced.graph, traced.constants)
    layers = layers_of(graph)
    if not layers:
        raise ScheduleError(f"the forward of {name(root)} calls none of its recurrent modules; {MEND}")
    found = tried(graph, arguments.examples, axes)
    flops = [facts(node).flops for node in graph.graph.nodes]
    costs = [facts(node).cost for node in graph.graph.nodes]
    ends = 1 + max(at for at, node in enumerate(graph.graph.nodes) if is_recurrent(graph, node))
    count = len(layers) * chunks
    return OverTime(
        stages=(stage_of(root, graph, sum(flops[:ends]) / count, sum(costs[:ends]) / count),) * count,
        values=(),
        arguments=len(arguments.names),
        bind=arguments.bind,
        assemble=traced.assemble,
        chunks=chunks,
        layers=layers,
        arguments_axes=axes if found.rows is not None else tuple(Axes(of.time) for of in axes),
        outputs_axes=found.axes,
        end_cost=sum(costs[ends:]) / chunks,
        example=example_of(found, traced),
        transient=traced.transient,
    )


def graph_of(root: nn.Module, arguments: Arguments) -> CapturedGraph:
    try:
        return captured(root, on_meta(arguments) if is_on_meta(root) else arguments)
    except PartitionError as error:
        for path in packed_in(root, arguments):
            raise packed(path) from error
        raise PartitionError(f"{str(error).removesuffix(BY_HAND)}{CUTS}") from error


def packed_in(root: nn.Module, arguments: Arguments) -> list[str]:
    """Paths of recurrent modules that are called with packed sequences."""
    found: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args, path=path: found.extend([path] * is_packed(args[0])))
        for path, module in root.named_modules()
        if isinstance(module, nn.RNNBase)
    ]
    args, kwargs = arguments.call(arguments.examples)
    try:
        with kept(root), torch.no_grad():
            theirs(root, *args, **kwargs)
    except WHAT_FORWARDS_RAISE as error:
        raise_if_ours(error)
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return found


def is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def stage_of(root: nn.Module, graph: fx.GraphModule, flops: float, cost: float) -> Stage:
    """Any of the stages, all of which have the whole graph. flops, cost: of one."""
    nodes = list(enumerate(graph.graph.nodes))
    return Stage(
        graph,
        inputs=(),
        outputs=(),
        names=names_of(graph, first_names(root.model if isinstance(root, Alone) else root)),
        root="model" if isinstance(root, Alone) else "",
        ops=sum(node.op.startswith("call_") for _, node in nodes),
        flops=flops,
        cost=cost,
        draws=tuple((node.name, at) for at, node in nodes if facts(node).draws and not is_recurrent(graph, node)),
    )


def on_meta(arguments: Arguments) -> Arguments:
    return replace(arguments, examples=tree_map_only(Tensor, lambda x: x.to("meta"), arguments.examples))


def example_of(found: FoundAxes, traced: CapturedGraph) -> Any:
    """What the graph returned in the trial, with the dtypes that the model has."""
    return tree_map(lambda x, like: x.to(like.dtype) if isinstance(x, Tensor) else x, found.output, traced.examples)


def name(model: nn.Module) -> str:
    return type(model.model if isinstance(model, Alone) else model).__name__
