"""Small whole numbers of a narrow dtype that meet those of a wider one: exact in both, they may be of the wider.

(h > 0).float() * h computes in float64 where h is that, and so does h * (1 - (h > 0).float()).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import is_pointwise

aten = torch.ops.aten
MOST = 256  # of what bfloat16 holds exactly
SUMS = {aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar}
PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}
MOVES = {
    *(aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.select.int),
    *(aten.slice.Tensor, aten.transpose.int, aten.permute.default, aten.t.default, aten.clone.default),
}


def widen(graph: fx.Graph, results: Collection[Any]) -> None:
    """Changes the dtype of what started as truth values, where all that reads it computes in one that is wider.
    results: what the graph's user sees."""
    sizes: dict[fx.Node, int] = {}
    for node in graph.nodes:
        size = size_of(node, sizes)
        if size is not None and size <= MOST and node not in results:
            sizes[node] = size
    wider: dict[fx.Node, torch.dtype] = {}
    for node in reversed(sizes):
        found = {wider.get(user) or dtype_of(user) for user in node.users}
        (dtype,) = found if len(found) == 1 else (None,)
        if dtype is not None and dtype.itemsize > node.meta["val"].dtype.itemsize:
            wider[node] = dtype
    for node in sizes:  # a sum is exact in either dtype, but takes the wider one of its operands
        if node in wider and all(arg in wider or is_truth(arg) for arg in node.all_input_nodes):
            node.meta["val"] = node.meta["val"].to(wider[node])
            if node.target is aten._to_copy.default:
                node.kwargs = {**node.kwargs, "dtype": wider[node]}


def size_of(node: fx.Node, sizes: dict[fx.Node, int]) -> int | None:
    """The largest whole number that it may be, of real dtype; None where it may be any."""
    if node.op != "call_function" or not isinstance(node.meta["val"], Tensor):
        return None
    if node.target is aten._to_copy.default:
        return 1 if is_truth(node.args[0]) and node.meta["val"].is_floating_point() else None
    if node.target in MOVES:
        return sizes.get(node.args[0])
    given = [sizes.get(arg) if isinstance(arg, fx.Node) else whole(arg) for arg in node.args]
    if node.kwargs or len(given) != 2 or None in given:
        return None
    a, b = (size or 0 for size in given)
    return a + b if node.target in SUMS else a * b if node.target in PRODUCTS else None


def whole(number: Any) -> int | None:
    return abs(int(number)) if isinstance(number, (int, float)) and float(number).is_integer() else None


def is_truth(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta["val"], Tensor) and node.meta["val"].dtype is torch.bool


def dtype_of(user: fx.Node) -> torch.dtype | None:
    """The dtype in which a pointwise op computes, or to which another converts; None of others."""
    value, known = user.meta["val"], is_pointwise(user.target) or user.target is aten._to_copy.default
    return value.dtype if known and value.is_floating_point() else None
