"""A recorded network as a graph of transposed Jacobians: what the rules say of each op, at given values."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.capture import Recording
from bppsa.sparsity import Identity, TransposedJacobian, lookup

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Edge:
    """J^T of `target` with respect to `source`, as factors from the source's side to the target's."""

    source: fx.Node
    target: fx.Node
    factors: tuple[TransposedJacobian, ...]


def evaluate(recording: Recording, x: Tensor) -> dict[fx.Node, Any]:
    """The values of all nodes for this input, without autograd."""
    values: dict[fx.Node, Any] = {recording.arguments[0]: x.detach()}
    values |= {node: tensor.detach() for tensor, node in recording.captured}
    with torch.no_grad():
        for node in recording.graph.nodes:
            if node.op == "call_function":
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
    return values


def between(start: fx.Node, end: fx.Node) -> list[fx.Node]:
    """The nodes that a gradient passes on its way from `end` back to `start`, in the order of the graph."""
    forward: set[fx.Node] = {start}
    for node in start.graph.nodes:
        if node.target is not aten.detach.default and any(arg in forward for arg in node.all_input_nodes):
            forward.add(node)
    backward = {end}
    for node in reversed(start.graph.nodes):
        if node in backward:
            backward.update(node.all_input_nodes)
    return [node for node in start.graph.nodes if node in forward & backward]


def edges(recording: Recording, end: fx.Node, values: Mapping[fx.Node, Any]) -> list[Edge]:
    """The J^T of each op between the input and `end`, in the order of the graph.

    Raises Unsupported where an op has no rule, or mixes the rows of the batch.
    """
    start = recording.arguments[0]
    found = between(start, end)
    several = {node.args[0] for node in found if node.target is operator.getitem}
    active = set(found) - several
    result = []
    for node in found:
        if node is start or node in several:
            continue
        of = node.args[0] if node.target is operator.getitem else node
        which = node.args[1] if of is not node else None
        for argument, factors in operators(of, which, values, active):
            result.append(Edge(argument, node, tuple(factors)))
    return result


def operators(
    node: fx.Node, which: int | None, values: Mapping[fx.Node, Any], active: set[fx.Node]
) -> Iterator[tuple[fx.Node, list[TransposedJacobian]]]:
    """For each active argument of an op, the factors of its J^T; which: the output meant, of several."""
    rule = lookup(node.target)
    if isinstance(rule, Reason):
        raise Unsupported(rule)
    out = values[node]
    spread = torch.Tag.pointwise in node.target.tags

    def operand(argument: fx.Node) -> Tensor:
        value = values[argument]
        return value.expand(out.shape) if spread and isinstance(value, Tensor) else value

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), operand)
    found = rule(*args, out=out, **kwargs)
    arguments = [leaf for leaf in tree_leaves(node.args) if isinstance(leaf, fx.Node)]
    for argument, own in zip(arguments, found if which is None else found[which], strict=True):
        if own is not None and argument in active:
            before = values[argument]
            yield argument, [own] if before.shape == operand(argument).shape else [*broadcast(before, out), own]


def broadcast(x: Tensor, out: Tensor) -> Sequence[TransposedJacobian]:
    rule = lookup(aten.expand.default)
    assert not isinstance(rule, Reason)
    return rule(x, list(out.shape), out=x.expand(out.shape))


def single(path: Sequence[Edge]) -> TransposedJacobian | None:
    """The only operator of a chain in which all others change nothing; None where there is none such."""
    if not path or len({edge.source for edge in path}) < len(path) or len({edge.target for edge in path}) < len(path):
        return None
    factors = [factor for edge in path for factor in edge.factors]
    acting = [f for f in factors if not (isinstance(f, Identity) and f.in_size == f.out_size)]
    return (acting or factors)[0] if len(acting) < 2 else None
