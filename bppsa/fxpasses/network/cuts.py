"""Cut a model's graph into a chain: at the tensors that every path from the input to the output crosses.

Those are the dominators of the output (networkx). Residual blocks, inceptions and the like lie between two of them.
Only paths that a gradient takes count: a mask made from the input by a comparison ties nothing together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import networkx
import torch
from torch import Tensor, fx

from bppsa.common.chain import Chain, ChainStage
from bppsa.common.graph import nodes_in, tensors_in
from bppsa.errors import Unsupported
from bppsa.fxpasses.recording.capture import Recording
from bppsa.sparsity.bounds import most_entries
from bppsa.sparsity.links import links_of
from bppsa.sparsity.operators.transposed import TransposedJacobian

SOURCE, SINK = "source", "sink"
LIGHT = frozenset({"identity", "diagonal"})
aten = torch.ops.aten
PASSES_NOTHING = frozenset(  # of a gradient, though the result is real
    (
        *(getattr(aten, name).default for name in ("detach", "empty_like", "zeros_like", "ones_like", "full_like")),
        *(getattr(aten, name).default for name in ("new_zeros", "new_ones", "new_full", "new_empty")),
        *(getattr(aten, name).default for name in ("rand_like", "randn_like", "bernoulli")),
        *(aten.bernoulli.p, aten.bernoulli.Tensor),
    )
)


def cut(recording: Recording) -> Chain:
    """The chain of a recorded model. Neighbours of which one only scales, selects or renames are one stage (a
    convolution, its ReLU and its pool): their product costs next to nothing."""
    outputs = nodes_in(recording.result)
    on_path = paths(recording.graph, recording.arguments, outputs)
    cuts = dominators(on_path, outputs)
    order = [node for node in recording.graph.nodes if node in on_path]
    stages = [stage_between(a, b, order) for a, b in itertools.pairwise(cuts)]
    return Chain(recording.graph, tuple(merged(stages)))


def paths(graph: fx.Graph, inputs: Iterable[fx.Node], outputs: Iterable[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The nodes through which a gradient flows from an output to an input, each with those it flows on to. What is
    looked up by integers alone (an embedding) is where a path begins."""
    inputs = set(inputs)
    of_real, of_whole = ({node for node in inputs if is_real(node) is real} for real in (True, False))
    found: dict[fx.Node, list[fx.Node]] = {node: [] for node in of_real}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        for depending in (of_real, of_whole):
            if not depending.isdisjoint(node.all_input_nodes):
                depending.add(node)
        before = [other for other in node.all_input_nodes if other in found]
        begins = node in of_whole and node not in of_real
        if is_real(node) and node.target not in PASSES_NOTHING and (before or begins):
            found[node] = before
    reached: dict[fx.Node, list[fx.Node]] = {}
    stack = [node for node in outputs if node in found]
    while stack:
        node = stack.pop()
        if node not in reached:
            reached[node] = found[node]
            stack.extend(found[node])
    return reached


def is_real(node: fx.Node) -> bool:
    values = node.meta.get("val")
    return any(v.is_floating_point() for v in tensors_in(values))


def dominators(on_path: dict[fx.Node, list[fx.Node]], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """Single tensors that all paths cross, from the input to the output."""
    graph = networkx.DiGraph()
    for node, before in on_path.items():
        graph.add_edges_from((other, node) for other in before or [SOURCE])
    graph.add_edges_from((node, SINK) for node in outputs if node in on_path)
    if SINK not in graph:
        return []
    above = networkx.immediate_dominators(graph, SOURCE)
    found: list[fx.Node] = []
    at: Any = above[SINK]
    while at != SOURCE:
        if isinstance(at.meta["val"], Tensor):
            found.append(at)
        at = above[at]
    return found[::-1]


def stage_between(start: fx.Node, end: fx.Node, order: Sequence[fx.Node]) -> ChainStage:
    nodes = tuple(order[order.index(start) + 1 : order.index(end) + 1])
    try:
        operators = list(stage_operators(start, end, nodes))
    except Unsupported as unsupported:
        return ChainStage(start, end, nodes, "unknown", reason=unsupported.reason)
    if len(operators) > 1:
        light = all(operator.structure in LIGHT for operator in operators)
        return ChainStage(start, end, nodes, "diagonal" if light else "composed", light)
    (operator,) = operators
    return ChainStage(start, end, nodes, operator.structure, most_entries(operator) <= max(operator.shape))


def stage_operators(start: fx.Node, end: fx.Node, nodes: Sequence[fx.Node]) -> Iterable[TransposedJacobian]:
    """Gives the operators of each op on the way, made from the stand-ins: structures without values. Raises
    `Unsupported` where a rule is missing or a sample's output depends on other samples."""
    rows = {node.meta["val"].shape[:1] for node in (start, end)}
    if len(rows) > 1:
        raise Unsupported("changes the batch", mend="kept as a VJP")
    inside, reached = {start, *nodes}, {end}
    for node in reversed(nodes):
        if node not in reached:  # of an op with several outputs each has a node of its own
            continue
        for argument, factors in links_of(node, inside, lambda n: n.meta["val"], {}):
            reached.add(argument)
            if any(operator.structure == "across rows" for operator in factors):
                raise Unsupported("works across samples", op=str(node.target), mend="kept as a VJP")
            yield from factors
    if start not in reached:
        raise Unsupported("passes no gradient on", mend="kept as a VJP")


def merged(stages: Sequence[ChainStage]) -> list[ChainStage]:
    """Light stages join the one before them, or the one after where there is none."""
    found: list[ChainStage] = []
    for stage in stages:
        before = found[-1] if found else None
        if before is not None and before.reason is None and stage.reason is None and (stage.light or before.light):
            found[-1] = joined(before, stage)
        else:
            found.append(stage)
    return found


def joined(a: ChainStage, b: ChainStage) -> ChainStage:
    structure = a.structure if b.light else b.structure
    return ChainStage(a.start, b.end, (*a.nodes, *b.nodes), structure, a.light and b.light)
