"""Run recorded graphs by hand: the values of nodes, given those of the placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa.common.chain import Recurrence
from bppsa.fxpasses.cell.recurrence import split
from bppsa.fxpasses.recording.capture import Recording, record
from tests.scan.zoo import Example


def evaluate(graph: fx.Graph, given: Mapping[fx.Node, Any]) -> dict[fx.Node, Any]:
    """The value of every node that can be had from those given."""
    values = dict(given)
    for node in graph.nodes:
        if node.op == "call_function" and all(arg in values for arg in node.all_input_nodes):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def replay(recording: Recording, args: Any) -> Any:
    """What the function would return for `args`, by its graph."""
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    given = dict(zip(recording.arguments, tensors, strict=True))
    given |= {node: tensor for tensor, node in recording.captured}
    values = evaluate(recording.graph, given)
    return pytree.tree_map_only(fx.Node, values.__getitem__, recording.result)


def record_cell(example: Example) -> tuple[Recording, int, int]:
    """A cell recorded as `frontend.cell.scanning` does it, with flat results; and the numbers of carry and x leaves."""
    carry, carry_spec = pytree.tree_flatten(example.carry)
    xs, x_spec = pytree.tree_flatten(example.xs)

    def flat(carry: Sequence[Tensor], x: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        nexts, y = example.cell(pytree.tree_unflatten(carry, carry_spec), pytree.tree_unflatten(x, x_spec))
        return pytree.tree_leaves(nexts), pytree.tree_leaves(y)

    return record(flat, (carry, [leaf[0] for leaf in xs])), len(carry), len(xs)


def split_cell(example: Example) -> Recurrence:
    recording, carries, xs = record_cell(example)
    nexts, ys = recording.result
    return split(recording, carries, xs, ys, nexts)


def ops(graph: fx.Graph | None) -> list[str]:
    """The names of a graph's ops, in order: "mm", "add", ..."""
    nodes = () if graph is None else graph.nodes
    return [node.target._opname for node in nodes if isinstance(node.target, torch._ops.OpOverload)]


def random_like(node: fx.Node, seed: int) -> Tensor:
    value = node.meta["val"]
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise > 0 if value.dtype is torch.bool else noise.to(value.dtype)
