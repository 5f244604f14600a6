"""nn.Linear on samples of several places, [B, *t, K], as the one op it was.

Below autograd it is a view to [B * t, K], a product, and a view back. The first view takes samples apart, so that no
rule could say anything of one. The op put in their place runs the same kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from bppsa.fxpasses.capture import Recording

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def with_linears(recording: Recording) -> Recording:
    """View, product with a transposed weight and view back become `aten.linear` where the batch stays what it was."""
    joined: dict[fx.Node, fx.Node] = {}
    for node in recording.graph.nodes:
        found = parts(node)
        if found is not None:
            rows, product, weight, bias = found
            with recording.graph.inserting_before(node):
                new = recording.graph.call_function(aten.linear.default, (rows.args[0], weight.args[0], *bias))
            new.meta.update(node.meta, path=product.meta.get("path", ""))
            node.replace_all_uses_with(new)
            joined[node] = new
            for old in (node, product, rows, weight):
                if not old.users:
                    recording.graph.erase_node(old)
    return replace(recording, result=tree_map_only(fx.Node, lambda node: joined.get(node, node), recording.result))


def parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, list[fx.Node]] | None:
    """The first view, the product, the transposed weight and the bias, if any, where `node` is the view back."""
    if node.target not in VIEWS or not is_op(node.args[0], aten.addmm.default, aten.mm.default):
        return None
    product: Any = node.args[0]
    *bias, rows, weight = product.args
    if product.kwargs or len(product.users) > 1 or not (is_op(rows, *VIEWS) and is_op(weight, aten.t.default)):
        return None
    before, after = rows.args[0].meta["val"].shape, node.meta["val"].shape
    whole = before[:-1] == after[:-1] and (before[-1], after[-1]) == weight.meta["val"].shape
    plain = all(b.meta["val"].dim() == 1 for b in bias)
    return (rows, product, weight, bias) if len(before) > 2 and whole and plain else None


def is_op(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in targets
