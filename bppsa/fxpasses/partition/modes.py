"""One graph for training and evaluation, from a trace of each.

Where the two differ in constants alone, as in dropout(x, training=self.training), one graph chooses between these when
it runs, by the `training` of the module that makes the call. Where they differ in what they call, the graph is that of
the model's mode, and refuses to run in the other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

from torch import fx

from bppsa.errors import PartitionError
from bppsa.fxpasses.partition.decisions import as_decided
from bppsa.fxpasses.partition.effects import Facts
from bppsa.fxpasses.partition.tracing import Graph

TRAINING = "training"  # the attribute of a module


def in_both_modes(here: Graph, there: Graph | PartitionError, training: bool) -> Graph:
    """`here`, the trace in the present mode (training or not), made to serve the other mode too."""
    if isinstance(there, PartitionError) or not alike(here.graph, there.graph):
        only_in(here.graph, training)
        return here
    twins = dict(zip(there.graph.nodes, here.graph.nodes, strict=True))
    modes: dict[str, fx.Node] = {}
    for other, node in twins.items():
        args, kwargs = fx.node.map_arg((other.args, other.kwargs), twins.__getitem__)
        if differ(args, node.args) or differ(kwargs, node.kwargs):
            path = caller(node)
            if path not in modes:
                modes[path] = mode_node(here.graph, path)
            with here.graph.inserting_before(node):
                node.args = chosen(here.graph, modes[path], training, node.args, args)
                node.kwargs = chosen(here.graph, modes[path], training, node.kwargs, kwargs)
        facts = node.meta.get("facts", Facts())
        node.meta["facts"] = replace(facts, draws=facts.draws or other.meta.get("facts", facts).draws)
    return here


def alike(a: fx.Graph, b: fx.Graph) -> bool:
    """Whether they make the same calls in the same order, of the same nodes."""
    number = {node: i for graph in (a, b) for i, node in enumerate(graph.nodes)}

    def shape(node: fx.Node) -> Any:
        target = node.target if node.op != "output" else None
        return node.op, target, [number[source] for source in node.all_input_nodes], len(node.args), sorted(node.kwargs)

    return all(x is not None and y is not None and shape(x) == shape(y) for x, y in zip_longest(a.nodes, b.nodes))


def differ(a: Any, b: Any) -> bool:
    return repr(a) != repr(b)


def caller(node: fx.Node) -> str:
    """The path of the module whose forward made the node."""
    return next(reversed(node.meta.get("nn_module_stack", {"": None})))


def mode_node(graph: fx.Graph, path: str = "") -> fx.Node:
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        node = graph.get_attr(f"{path}.{TRAINING}" if path else TRAINING)
    node.meta.update(facts=Facts(), decidable=True)
    return node


def chosen(graph: fx.Graph, mode: fx.Node, training: bool, here: Any, there: Any) -> Any:
    """The arguments, with a choice by mode in the place of each constant that differs."""
    if isinstance(here, (tuple, list)) and len(here) == len(there):
        return type(here)(chosen(graph, mode, training, a, b) for a, b in zip(here, there, strict=True))
    if isinstance(here, dict):
        return {key: chosen(graph, mode, training, value, there[key]) for key, value in here.items()}
    if not differ(here, there):
        return here
    node = graph.call_function(by_mode, (mode, here, there) if training else (mode, there, here))
    node.meta.update(facts=Facts(), decidable=True)
    return node


def by_mode(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    return in_training if training else in_evaluation


def only_in(graph: fx.Graph, training: bool) -> None:
    mode = mode_node(graph)
    with graph.inserting_after(mode):
        check = graph.call_function(as_decided, (mode, "bool", training, "the mode of the model"))
    check.meta.update(facts=Facts(), decidable=True)
