"""Products of several values side by side, taken apart: only those with the carry have to wait for it."""

from __future__ import annotations

import torch
from torch import fx

from bppsa.common.graph import call

aten = torch.ops.aten


def distribute_concat(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """cat([x, h]) @ W = x @ W_top + h @ W_bottom: only the second part waits for h. Gives what stands for what."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not aten.mm.default or not joins_columns(node.args[0]):
            continue
        (pieces, *_), weight = node.args[0].args, node.args[1]
        at, total = 0, None
        with graph.inserting_before(node):
            for piece in pieces:
                end = at + piece.meta["val"].shape[1]
                rows = call(graph, aten.slice.Tensor, weight, 0, at, end)
                product = call(graph, aten.mm.default, piece, rows)
                total = product if total is None else call(graph, aten.add.Tensor, total, product)
                at = end
        node.replace_all_uses_with(total)
        graph.erase_node(node)
        replaced[node] = total
    return replaced


def joins_columns(node: fx.Node) -> bool:
    """Whether it is a cat whose pieces, side by side, can each be multiplied alone: rows of one dtype."""
    if node.target is not aten.cat.default or len(node.args) < 2 or node.args[1] not in (1, -1):
        return False
    values = [piece.meta["val"] for piece in node.args[0]]
    return all(value.dtype == node.meta["val"].dtype and value.dim() == 2 and value.numel() for value in values)
