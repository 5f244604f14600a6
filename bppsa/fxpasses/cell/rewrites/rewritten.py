"""A recorded cell, rewritten so that what waits for the carry is done to rows [B, ...] by ops that kernels know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS
from bppsa.common.graph import ancestors, call
from bppsa.errors import Reason
from bppsa.fxpasses.axes.rows_first import with_rows_first
from bppsa.fxpasses.cell.rewrites.concatenated import distribute_concat
from bppsa.fxpasses.cell.rewrites.line_up import CARRY, PARAM, levels
from bppsa.fxpasses.cell.rewrites.real_parts import with_real_parts
from bppsa.fxpasses.cell.rewrites.widened import widen
from bppsa.fxpasses.recording.capture import Recording, copied
from bppsa.fxpasses.spelling.bounded import check_kept
from bppsa.fxpasses.spelling.expand import cancel, expand

aten = torch.ops.aten

# What torch.vmap cannot run for all steps, whatever it is of.
NOT_AT_ONCE = {aten.index_put.default}


def rewritten(recording: Recording, carries: int, xs: int, refused: dict[fx.Node, Reason] | None = None) -> Recording:
    """A copy, whose result is (nexts, ys); a complex carry is two there. refused: nodes that cannot be rewritten go
    there, and what is made of them stays as it is; without it the first raises `Unsupported`."""
    recording = copied(recording)
    graph, arguments = recording.graph, recording.arguments
    given = arguments[:carries], arguments[carries : carries + xs]
    widen(graph, {*recording.result[0], *recording.result[1]})
    level = levels(graph, *given)
    recording = with_real_parts(recording, carries, level, waiting(graph, recording.result[0], *given), refused)
    nexts, ys = recording.result
    given = recording.arguments[: len(nexts)], given[1]
    replaced = cancel(graph)
    replaced |= with_rows_first(graph, *given, waiting(graph, latest(nexts, replaced), *given), refused)
    replaced |= expand(graph, waiting(graph, latest(nexts, replaced), *given), given[0], refused)
    replaced |= expand(graph, at_each_step(graph, given), given[0], refused)
    check_kept(given[0], latest(nexts, replaced), refused)
    replaced |= distribute_concat(graph)
    hold_weights(graph)
    return replace(recording, result=(latest(nexts, replaced), latest(ys, replaced)))


def hold_weights(graph: fx.Graph) -> None:
    """A weight that is filled with a number, as `torch.ones(n, n)`, is memory as all others: a kernel reads it."""
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        weight = node.args[1]
        if weight.target in FILLS and not weight.all_input_nodes:
            with graph.inserting_before(node):
                node.replace_input_with(weight, call(graph, aten.clone.default, weight))


def at_each_step(graph: fx.Graph, given: Sequence[Sequence[fx.Node]]) -> list[fx.Node]:
    """What is of the carries or of x, and cannot be run for all steps at once."""
    candidates = [node for node in graph.nodes if node.target in NOT_AT_ONCE]
    level = levels(graph, *given) if candidates else {}
    return [node for node in candidates if level[node] != PARAM]


def latest(nodes: Iterable[Any], replaced: dict[fx.Node, fx.Node]) -> tuple[Any, ...]:
    """What stands for the nodes after all that was replaced."""
    found = list(nodes)
    for i, node in enumerate(found):
        while isinstance(node, fx.Node) and node in replaced:
            node = replaced[node]
        found[i] = node
    return tuple(found)


def waiting(
    graph: fx.Graph, nexts: Iterable[fx.Node], carries: Iterable[fx.Node], xs: Iterable[fx.Node]
) -> list[fx.Node]:
    """What depends on the carry and the next carry on it, operands before users."""
    level = levels(graph, carries, xs)
    found = ancestors(nexts, lambda node: node.op == "call_function" and level[node] == CARRY)
    return [node for node in graph.nodes if node in found]
