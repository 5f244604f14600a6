"""A recorded network as transposed Jacobians: what the rules say of each op, at given values."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.graph import run
from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.capture import Recording
from bppsa.sparsity import Identity, Link, Network, TransposedJacobian
from bppsa.sparsity.links import NodeMasks, links_of
from bppsa.sparsity.operators.across import RowMixing

aten = torch.ops.aten
MIXES = "mixes the rows of the batch"


@dataclass(frozen=True, eq=False)
class NodeValues:
    """What the nodes of a recording hold in one call: tensors, and the masks of pruned weights."""

    of: Mapping[fx.Node, Any]
    masks: NodeMasks


def evaluate(recording: Recording, captured: Sequence[Tensor], x: Tensor, masks: NodeMasks) -> NodeValues:
    """All values for this input, without autograd. captured: the tensors of `recording.captured`, as they are now."""
    values: dict[fx.Node, Any] = {recording.arguments[0]: x.detach()}
    values |= {node: tensor.detach() for tensor, (_, node) in zip(captured, recording.captured, strict=True)}
    with torch.no_grad():
        run(recording.graph, values)
    return NodeValues(values, masks)


def network(recording: Recording, values: NodeValues, budget: int) -> TransposedJacobian:
    """J^T of the recorded function: the operator of its only op that does something, or a Network of all of them.

    Raises Unsupported where an op has no rule, or mixes the rows of the batch.
    """
    start, end = recording.arguments[0], recording.result
    x, out = values.of[start], values.of[end]
    if start is end:
        return Identity(x, x)
    found = between(start, end)
    links = leading(list(linked(found, values)), len(found) - 1)
    return single(links) or Network(x, out, links, budget)


def between(start: fx.Node, end: fx.Node) -> list[fx.Node]:
    """The nodes that a gradient passes on its way from `end` back to `start`, in the order of the graph."""
    forward: set[fx.Node] = {start}
    for node in start.graph.nodes:
        if node.target is not aten.detach.default and any(arg in forward for arg in node.all_input_nodes):
            forward.add(node)
    if end not in forward:
        return [start]
    backward = {end}
    for node in reversed(start.graph.nodes):
        if node in backward:
            backward.update(node.all_input_nodes)
    return [node for node in start.graph.nodes if node in forward & backward]


def leading(links: Sequence[Link], end: int) -> list[Link]:
    """The links from which a gradient at value `end` comes: not each op on the way has one."""
    reached, found = {end}, []
    for link in reversed(links):
        if link.target in reached:
            reached.add(link.source)
            found.append(link)
    return found[::-1]


def linked(found: Sequence[fx.Node], values: NodeValues) -> Iterator[Link]:
    """The J^T of each of these ops but the first, the input; those of an op of several outputs stand at the outputs."""
    several = {node.args[0] for node in found if node.target is operator.getitem}
    number = {node: i for i, node in enumerate(found)}
    for node in found:
        if node is found[0] or node in several:
            continue
        op = node.args[0] if node.target is operator.getitem else node
        path = op.meta.get("path", "")
        try:
            factored = links_of(node, number.keys() - several, values.of.__getitem__, values.masks)
        except Unsupported as unsupported:
            raise Unsupported(replace(unsupported.reason, path=path)) from unsupported
        for argument, factors in factored:
            if any(isinstance(factor, RowMixing) for factor in factors):
                raise Unsupported(MIXES, str(op.target), "kept as a VJP", path)
            yield Link(number[argument], number[node], factors, path, str(op.target))


def single(links: Sequence[Link]) -> TransposedJacobian | None:
    """The only operator of a chain in which all others change nothing; None where there is none such."""
    if not links or len({link.source for link in links}) < len(links) or len({x.target for x in links}) < len(links):
        return None
    factors = [factor for link in links for factor in link.factors]
    acting = [f for f in factors if not (isinstance(f, Identity) and f.in_size == f.out_size)]
    return (acting or factors)[0] if len(acting) < 2 else None
