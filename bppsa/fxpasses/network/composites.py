"""Ops that take samples apart below autograd, as the one op they were.

nn.Linear on samples of several places, [B, *t, K], is a view to [B * t, K], a product and a view back; instance norm is
a batch norm of [1, B * C, *grid]. No rule could say anything of a sample there. The op put in their place runs the same
kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from bppsa.fxpasses.recording.capture import Recording

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


@dataclass(frozen=True)
class Composite:
    """The op and its arguments; parts: the nodes it stands for, the last first. work: the one that names the module."""

    op: Any
    args: tuple[Any, ...]
    parts: Sequence[fx.Node]
    work: fx.Node


def with_composites(recording: Recording) -> Recording:
    """The recording with whole ops, wherever the batch stays what it was."""
    graph, joined = recording.graph, dict[fx.Node, fx.Node]()
    for node in list(graph.nodes):
        found = linear(node) or instance_norm(node)
        if found is not None:
            with graph.inserting_before(node):
                new = graph.call_function(found.op, found.args)
            new.meta.update(node.meta, path=found.work.meta.get("path", ""))
            node.replace_all_uses_with(new)
            joined[node] = new
            for part in found.parts:
                if not part.users:
                    graph.erase_node(part)
    return replace(recording, result=tree_map_only(fx.Node, lambda node: joined.get(node, node), recording.result))


def linear(node: fx.Node) -> Composite | None:
    """Where `node` is the view back."""
    if not is_op(node, *VIEWS) or not is_op(node.args[0], aten.addmm.default, aten.mm.default):
        return None
    product: Any = node.args[0]
    *bias, rows, weight = product.args
    if product.kwargs or len(product.users) > 1 or not (is_op(rows, *VIEWS) and is_op(weight, aten.t.default)):
        return None
    before, after = rows.args[0].meta["val"].shape, node.meta["val"].shape
    whole = before[:-1] == after[:-1] and (before[-1], after[-1]) == weight.meta["val"].shape
    if len(before) < 3 or not whole or any(b.meta["val"].dim() != 1 for b in bias):
        return None
    return Composite(aten.linear.default, (rows.args[0], weight.args[0], *bias), (node, product, rows, weight), product)


def instance_norm(node: fx.Node) -> Composite | None:
    """Where `node` is the view back from a batch norm that keeps no statistics."""
    if not is_op(node, *VIEWS) or not is_op(node.args[0], operator.getitem):
        return None
    normed: Any = node.args[0]
    norm = normed.args[0]
    if normed.args[1] != 0 or not is_op(norm, aten._native_batch_norm_legit.no_stats):
        return None
    rows, w, b, training, momentum, eps = norm.args
    notes = [user for user in norm.users if user is not normed]
    if not training or not is_op(rows, *VIEWS) or len(normed.users) > 1 or any(note.users for note in notes):
        return None
    x, repeats = rows.args[0], [parameter for parameter in (w, b) if parameter is not None]
    batch, channels = x.meta["val"].shape[:2]
    taken_apart = rows.meta["val"].shape[:2] == (1, batch * channels) and node.meta["val"].shape == x.meta["val"].shape
    if not taken_apart or not all(is_op(r, aten.repeat.default) and r.args[1] == [batch] for r in repeats):
        return None
    own = [None if parameter is None else parameter.args[0] for parameter in (w, b)]
    args = (x, *own, None, None, True, momentum, eps, False)
    return Composite(aten.instance_norm.default, args, (node, normed, *notes, norm, rows, *repeats), norm)


def is_op(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in targets
