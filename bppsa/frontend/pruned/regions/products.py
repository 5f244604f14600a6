"""Find in a captured graph the layers whose weight is a Parameter times masks, and make each one node.

A layer's node reads the Parameter and the masks themselves, so nobody has to multiply them: `masked_conv2d(x,
parameter, masks, bias, ...)` and `masked_linear(x, parameter, masks, bias)`, without masks where it is not pruned.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from bppsa.common.graph import ancestors
from bppsa.frontend.pruned.regions.modes import LEAVE, SETTERS
from bppsa.frontend.pruned.regions.nodes import argument, is_leaf, is_parameter, writes


def product(weight: Tensor, masks: Sequence[Tensor]) -> Tensor:
    for mask in masks:
        weight = torch.where(mask, weight, 0.0) if mask.dtype is torch.bool else mask.to(weight.dtype) * weight
    return weight


def masked_conv2d(x: Tensor, weight: Tensor, masks: Sequence[Tensor], bias: Tensor | None, *geometry: Any) -> Tensor:
    """geometry: stride, padding, dilation, groups."""
    return torch.conv2d(x, product(weight, masks), bias, *geometry)


def masked_linear(x: Tensor, weight: Tensor, masks: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    return F.linear(x, product(weight, masks), bias)


LAYERS = {masked_conv2d: "conv2d", masked_linear: "linear"}
PLAIN = {torch.conv2d: "conv2d", F.linear: "linear"}
SELECTING = (torch.where, "where", torch.masked_fill, "masked_fill")
INVERTING = (operator.invert, torch.logical_not, torch.bitwise_not, "logical_not", "bitwise_not")
CASTS = ("to", "float", "double", "bool", "type", "type_as", "detach")
GEOMETRY = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def take_products_in(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in PLAIN:
            weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
            found = factors(weight)
            if found is None or is_changed(graph, node, weight, (found[0], *found[1])):
                continue
            replace(graph, node, (argument(node, 0, "input"), *found, bias))
    for node in reversed(graph.nodes):
        if not node.users and is_of_mask(node):
            graph.erase_node(node)


def replace(graph: fx.Graph, node: fx.Node, operands: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        if node.target is F.linear:
            new = linear_of_rows(graph, node, *operands)
        else:
            geometry = (argument(node, i, name, default) for i, (name, default) in enumerate(GEOMETRY.items(), 3))
            new = graph.call_function(masked_conv2d, (*operands, *geometry))
    new.meta = node.meta
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def linear_of_rows(graph: fx.Graph, node: fx.Node, x: fx.Node, *operands: Any) -> fx.Node:
    """Kernels have rows [B, C]: an input [B, T, C] becomes one, and the result what it was."""
    given, made = (each.meta.get("example_value") for each in (x, node))
    if not isinstance(given, Tensor) or not isinstance(made, Tensor) or given.dim() < 3:
        return graph.call_function(masked_linear, (x, *operands))
    rows = graph.call_function(torch.flatten, (x, 0, -2))
    rows.meta = x.meta | {"example_value": given.flatten(0, -2)}
    product = graph.call_function(masked_linear, (rows, *operands))
    product.meta = node.meta | {"example_value": made.flatten(0, -2)}
    return graph.call_function(shaped_like, (product, x))


def shaped_like(product: Tensor, x: Tensor) -> Tensor:
    return product.unflatten(0, x.shape[:-1])


def factors(node: Any) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """The Parameter and the masks that a weight is the product of, all of them the graph's own; None for another."""
    if not isinstance(node, fx.Node):
        return None
    if is_leaf(node):
        return (node, ()) if is_parameter(node) else None
    pair = masking(node)
    found = pair and factors(pair[0])
    return (found[0], (*found[1], pair[1])) if pair and found else None


def masking(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(weight, mask) of `mask * weight`, either way round, or of `where(mask, weight, 0)` and its like."""
    if node.target in SELECTING:
        return selection(node)
    if node.target not in (torch.mul, operator.mul, "mul") or len(node.args) != 2 or node.kwargs:
        return None
    for weight, mask in (node.args, node.args[::-1]):
        if isinstance(weight, fx.Node) and isinstance(mask, fx.Node):
            leaf = mask_of(mask, weight)
            if leaf is not None:
                return weight, leaf
    return None


def selection(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(weight, mask) of `where(mask, weight, 0)` or `masked_fill(weight, ~mask, 0)`, by a mask of bools."""
    first, second, other = (*node.args, None, None, None)[:3]
    fills = node.target not in (torch.where, "where")
    weight, mask = (first, inverted(second)) if fills else (second, first)
    if not isinstance(mask, fx.Node) or not isinstance(weight, fx.Node) or not is_zero(other, weight) or node.kwargs:
        return None
    leaf = mask_of(mask, weight)
    return (weight, leaf) if leaf is not None and dtype_of(leaf) is torch.bool else None


def inverted(node: Any) -> Any:
    return node.args[0] if isinstance(node, fx.Node) and node.target in INVERTING and len(node.args) == 1 else None


def is_zero(x: Any, weight: fx.Node) -> bool:
    """Whether it is zero, or zeros of the weight's shape and dtype."""
    if not isinstance(x, fx.Node):
        return bool(x == 0)
    return x.target is torch.zeros_like and x.args == (weight,) and not x.kwargs


def mask_of(node: fx.Node, weight: fx.Node) -> fx.Node | None:
    """The tensor that `node` is, or is a conversion of; None where `product` would read other numbers from it, give
    another dtype, or lose its gradient."""
    steps = conversions(node)
    leaf, kind = steps[-1], dtype_of(weight)
    after, *_, before = (*map(dtype_of, steps), dtype_of(leaf))
    if not is_leaf(leaf) or before is None or after is None or kind is None or leaf.meta["example_value"].requires_grad:
        return None
    if is_parameter(leaf) and not weight.meta["example_value"].requires_grad:  # a weight that is not trained either
        return None
    same_numbers = before is torch.bool or all(dtype_of(step) in (before, kind) for step in steps)
    same_dtype = torch.promote_types(after, kind) is kind
    return leaf if same_numbers and same_dtype else None


def dtype_of(node: fx.Node) -> torch.dtype | None:
    """None for what is no tensor."""
    value = node.meta.get("example_value")
    return value.dtype if isinstance(value, Tensor) else None


def is_masking(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and factors(node) is not None


def conversions(node: fx.Node) -> list[fx.Node]:
    """A mask, and what it was before its conversions to other dtypes or devices."""
    found = [node]
    while is_cast(found[-1]):
        found.append(found[-1].args[0])
    return found


def is_cast(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target in CASTS and isinstance(node.args[0], fx.Node)


def is_of_mask(node: fx.Node) -> bool:
    """Whether it can go where a product that read it has gone."""
    return is_masking(node) or is_cast(node) or node.target in (*INVERTING, torch.zeros_like)


def is_changed(graph: fx.Graph, layer: fx.Node, weight: Any, leaves: Sequence[fx.Node]) -> bool:
    """Whether the product could be another one where the layer reads it: something between them, or before the product
    in a part of it, writes into memory or changes modes, such as whether autograd looks on."""
    parts, between = parts_of(weight, leaves), False
    for node in graph.nodes:
        if node is layer:
            return False
        between = between or node in parts
        if between and (writes(node) or node.target in (*LEAVE, *SETTERS)):
            return True
    return False


def parts_of(weight: Any, leaves: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that compute the weight from its leaves."""
    return ancestors([weight], lambda node: isinstance(node, fx.Node) and node not in leaves and not is_leaf(node))
