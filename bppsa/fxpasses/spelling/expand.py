"""Ops of rows that wait for the carry, in terms of ops that kernels know: put in their place within a recorded cell.

Ops on x or on parameters alone stay what they are, because PyTorch's own run for all steps at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from bppsa.common.graph import nodes_in
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.fxpasses.spelling import matrices
from bppsa.fxpasses.spelling.bounded import check_places
from bppsa.fxpasses.spelling.expansions import EXPANSIONS
from bppsa.fxpasses.spelling.whole import made_whole, within_limit
from bppsa.sparsity.rules.matrix_ops import MATRICES

aten = torch.ops.aten


def expand(
    graph: fx.Graph, nodes: Iterable[fx.Node], carries: Collection[fx.Node], refused: dict[fx.Node, Reason] | None
) -> dict[fx.Node, fx.Node]:
    """Gives what stands for what. refused: nodes whose expansion raises `Unsupported` go there."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        expansion = expansion_of(node)
        if expansion is None:
            continue
        try:
            check_places(node, carries)
            results = written(graph, node, expansion)
            pairs = [] if results is NotImplemented else list(standing(node, results))
        except Unsupported as unsupported:
            if refused is None:
                raise
            refused[node] = unsupported.reason
            continue
        for old, new in pairs:
            stand_for(graph, old, new, replaced)
        if results is not NotImplemented and not isinstance(node.meta["val"], Tensor):
            graph.erase_node(node)
    once(graph, replaced)
    return replaced


def standing(node: fx.Node, results: Any) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each value of the node that is read, and what stands for it. Raises `Unsupported` where that is another shape or
    dtype: a form of the op that its expansion does not know."""
    one = isinstance(node.meta["val"], Tensor)
    items = [user for user in node.users if user.target is operator.getitem]
    for old, new in [(node, results)] if one else [(item, results[item.args[1]]) for item in items]:
        wanted, made = old.meta["val"], new.meta["val"]
        if old.users and (wanted.shape, wanted.dtype) != (made.shape, made.dtype):
            what = f"gives {list(wanted.shape)} of {wanted.dtype}; kernels would {list(made.shape)} of {made.dtype}"
            raise Unsupported(what, op=str(node.target), mend="write it with ops that have a kernel")
        yield old, new


def once(graph: fx.Graph, replaced: dict[fx.Node, fx.Node]) -> None:
    """Linear algebra on one matrix, as its inverse for several right sides, is done once."""
    known: dict[tuple[Any, fx.Node], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target in MATRICES:
            first = known.setdefault((node.target, node.args[0]), node)
            if first is not node:
                stand_for(graph, node, first, replaced)


def stand_for(graph: fx.Graph, node: fx.Node, other: fx.Node, replaced: dict[fx.Node, fx.Node]) -> None:
    replaced[node] = other
    node.replace_all_uses_with(other)
    graph.erase_node(node)


INVERSE = {aten.squeeze.dim, aten.select.int}


def cancel(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Dimensions of one that are taken away again where they were put."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        inner = node.args[0] if node.target in INVERSE else None
        if not isinstance(inner, fx.Node) or inner.target is not aten.unsqueeze.default:
            continue
        rank = inner.meta["val"].dim()
        if node.args[1] % rank == inner.args[1] % rank:
            stand_for(graph, node, inner.args[0], replaced)
    return replaced


def expansion_of(node: fx.Node) -> Callable[..., Any] | None:
    if made_whole(node):
        return within_limit
    return matrices.EXPANSIONS.get(node.target) or (EXPANSIONS.get(node.target) if applies(node) else None)


def applies(node: fx.Node) -> bool:
    """Whether it is of real numbers, or of lists of them."""
    given = [leaf.meta["val"] for leaf in nodes_in(node.args)]
    return all(isinstance(value, Tensor) and not value.is_complex() for value in given)


def written(graph: fx.Graph, node: fx.Node, expansion: Any) -> Any:
    """The nodes of what the expansion gives, put before `node`."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    return put_before(graph, node, node.all_input_nodes, lambda: expansion(*args, **kwargs))


def put_before(graph: fx.Graph, node: fx.Node, given: Iterable[fx.Node], compute: Callable[[], Any]) -> Any:
    """What `compute` makes of the stand-ins of the given nodes, with nodes in the place of its tensors, which stand
    before `node` and come from the same line."""
    recorder, last = Recorder(), node.prev
    recorder.graph, recorder.gradients = graph, False
    for arg in given:
        recorder.aliases.put(arg.meta["val"], arg)
    recorder.where = lambda: node.meta.get("path", "")
    recorder.line = lambda: node.meta.get("line", "")
    with _disable_current_modes(), torch.no_grad(), graph.inserting_before(node), recorder:
        try:
            results = compute()
        except Unsupported as unsupported:
            while node.prev is not last:
                graph.erase_node(node.prev)
            raise Unsupported(replace(unsupported.reason, op=str(node.target))) from unsupported
    assert not recorder.captured, f"what stands for {node.target} closes over tensors"
    return tree_map_only(Tensor, recorder.node_of, results)
