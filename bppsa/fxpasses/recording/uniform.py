"""Values that are one number all over, whatever the inputs are, as the gradients are with which a derivative begins."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from bppsa.common.chain import COUNTS_ROWS, FILLS

aten = torch.ops.aten


def fill_uniform(graph: fx.Graph, rows: int) -> None:
    """Fills with one number the values that are made of it. What is filled reads nothing but rows."""
    known: dict[fx.Node, Tensor] = {}  # what holds one number, whatever the inputs are
    for node in graph.nodes:
        like = node.meta.get("val")
        if node.op != "call_function" or not isinstance(like, Tensor) or not like.is_floating_point():
            continue
        if node.target in FILLS and not (node.all_input_nodes and may_have_rows(node, rows)):
            value = torch.full(like.shape, FILLS[node.target](node.args), dtype=like.dtype)
        elif node.all_input_nodes and known.keys() >= set(node.all_input_nodes):
            value = node.target(*fx.node.map_arg(node.args, known.__getitem__), **node.kwargs)
        else:
            continue
        number = value.flatten()[:1]
        has_all_rows = value.shape[:1] in ((), (rows,)) or node.target in COUNTS_ROWS
        if value.numel() and has_all_rows and is_one_number(value, number):
            known[node] = value
            node.target, node.args = aten.full.default, (list(value.shape), number.item())
            node.kwargs = {"dtype": value.dtype}


def may_have_rows(node: fx.Node, rows: int) -> bool:
    shape = node.meta["val"].shape
    return shape[:1] == (rows,) if node.target in COUNTS_ROWS else len(shape) > 0


def is_one_number(value: Tensor, number: Tensor) -> bool:
    """A zero with a sign is left as it was made."""
    signed = torch.logical_and(value == 0, value.signbit())
    return bool((value == number).all()) and not bool(signed.any())
