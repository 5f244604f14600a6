"""What tells after a sweep whether its numbers can be relied on: kernels raise no errors, they give NaN."""

from __future__ import annotations

import torch
from torch import fx

from bppsa.common.graph import call
from bppsa.sparsity.rules.matrix_ops import LOOKED_AT

aten = torch.ops.aten


def checks_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """A number [B, 1] for each row, put at the end of the graph: finite where all that is looked at is. None where
    nothing is."""
    found: fx.Node | None = None
    for node in [node for node in graph.nodes if node.target in LOOKED_AT]:
        rows = node.meta["val"].dim() - 1
        size = call(graph, aten.abs.default, call(graph, aten.detach.default, node))
        size = call(graph, aten.amax.default, size, list(range(1, rows + 1))) if rows else size
        found = size if found is None else call(graph, aten.maximum.default, found, size)
    return () if found is None else (call(graph, aten.unsqueeze.default, found, 1),)
