"""Whether an op treats rows one by one: what a row gives depends neither on other rows nor on its place among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import sympy
import torch
from torch import fx

from bppsa.common.graph import nodes_in
from bppsa.fxpasses.partition.means.layouts import RESHAPING
from bppsa.fxpasses.partition.means.sizes import (
    argument,
    arguments_of,
    dtype,
    is_tensor,
    name_of,
    operands,
    rows_at,
    size_of,
    symbols,
)
from bppsa.fxpasses.partition.means.windows import mixes_unasked

OVER = frozenset(["div", "div_", "true_divide", "divide"])
PRODUCT = frozenset((*OVER, "mul", "mul_", "multiply"))
DIMS = ("dim", "dims", "dimension", "dim0")
# Ops that only move what they are given: dimensions say where to, and their layout tells whether that fits the rows.
MOVING = frozenset(
    (
        *("transpose", "permute", "movedim", "unsqueeze", "squeeze", "flatten", "unflatten", "select", "cat", "stack"),
        *("concat", "concatenate", "repeat_interleave", "swapaxes", "swapdims", "expand", "sum", "mean", "size"),
    )
)
CUTTING = frozenset(("slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_split"))
NUMBERING = frozenset(("arange", "range"))
UNLIKE = frozenset(
    (
        *("linspace", "logspace", "eye", "randperm", "as_strided", "take", "put", "masked_scatter", "msort", "flipud"),
        *("renorm", "renorm_", "_unique", "_unique2", "unique_dim", "unique_consecutive", "nonzero", "bincount"),
    )
)
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
# How many of the last dimensions an op takes together.
MATRICES = {
    name: 2
    for name in (
        *("tril", "triu", "tril_", "triu_", "inverse", "linalg_inv", "linalg_inv_ex", "cholesky", "linalg_cholesky"),
        *("linalg_cholesky_ex", "linalg_eigh", "linalg_qr", "linalg_svd", "matrix_exp", "linalg_matrix_power"),
        *("linalg_solve", "linalg_solve_triangular", "scaled_dot_product_attention", "trapezoid"),
        "cumulative_trapezoid",
    )
}
KEEPING = frozenset((*MOVING, *CUTTING, *RESHAPING, "_to_copy", "to", "clone", "contiguous", "expand_as", "alias"))
PLACES = frozenset((*(KEEPING - CUTTING), *INDEXING, "slice"))


def mixes(node: fx.Node, rows: Set[Any], places: set[fx.Node]) -> bool | None:
    """None where no table knows the op. rows: symbols of how many there are.

    places: nodes whose values are rows' own numbers among a micro-batch's, to which this one may be added.
    """
    name = name_of(node)
    if name in NUMBERING:
        places.add(node)
        return argument(node, "start", 0) != 0 or argument(node, "step", 1) != 1
    if not places.isdisjoint(node.all_input_nodes):
        if name not in PLACES or (name == "slice" and size_of(node) != size_of(node.args[0])):
            return True
        if name not in INDEXING:
            places.add(node)
            return False
    if name in UNLIKE or (name not in PRODUCT and takes_size(node, rows)):
        return True
    if name in INDEXING:
        return picks_rows(node, rows, places)
    if not all(is_multiple(size, symbols(size) & rows) for size in shape_of(node)):
        return True
    source = next((arg for arg in nodes_in(node.args) if is_tensor(arg)), None)
    at = rows_at(source, rows)
    if source is None or not at:
        return False
    rule = RULES.get(name, of_dims)
    return name not in KEEPING and rule(node, source, at[0])


def of_dims(node: fx.Node, source: fx.Node, at: int) -> bool | None:
    """Whether it works along the rows, which are at a dimension of its first tensor."""
    count = len(size_of(source))
    name = name_of(node)
    if name in MATRICES:
        return at >= count - MATRICES[name]
    shape = argument(node, "normalized_shape", None)
    if shape is not None:
        return at >= count - len(shape)
    told = parameters(node).intersection(DIMS)
    if not told:
        return mixes_unasked(node, source, at)
    given = next((dims for each in DIMS if (dims := argument(node, each, None)) is not None), None)
    if given is None or given == []:  # all of them
        return True
    dims = given if isinstance(given, (list, tuple)) else [given]
    return any(isinstance(dim, int) and dim % count == at for dim in dims)


def of_table(node: fx.Node, source: fx.Node, at: int) -> bool:
    return source is node.args[0]


def of_statistics(node: fx.Node, source: fx.Node, at: int) -> bool:
    return at > 0 or bool(argument(node, "training", True))


RULES: Mapping[str, Callable[[fx.Node, fx.Node, int], bool | None]] = {
    "embedding": of_table,
    "batch_norm": of_statistics,
}


def picks_rows(node: fx.Node, rows: Set[Any], places: set[fx.Node]) -> bool:
    """Whether rows of its first argument are taken by anything but a mask or their own numbers."""
    source, indices = node.args[:2]
    if not isinstance(source, fx.Node) or not isinstance(indices, (list, tuple)):
        return False
    at, dim, numbered = rows_at(source, rows), 0, False
    for index in indices:
        mask = isinstance(index, fx.Node) and is_tensor(index) and dtype(index) in (torch.bool, torch.uint8)
        if index is not None and not mask and dim in at and index not in places:
            return True
        numbered |= index in places and dim not in at
        dim += len(size_of(index)) if mask else 1
    return numbered


def parameters(node: fx.Node) -> set[str]:
    """The names of an ATen op's, none of anything else's."""
    return {given.name for given in arguments_of(node)}


def takes_size(node: fx.Node, rows: Set[Any]) -> bool:
    """Whether how many rows there are is an operand, as in x + len(x)."""
    for given, arg in operands(node):
        number = isinstance(arg, fx.Node) and not is_tensor(arg) and bool(symbols(size_of(arg)) & rows)
        if number and given.type.kind() in ("NumberType", "FloatType", "TensorType"):
            return True
    return False


def shape_of(node: fx.Node) -> tuple[Any, ...]:
    return size_of(node) if is_tensor(node) else ()


def is_multiple(size: Any, of: Set[Any]) -> bool:
    """Whether it grows with the symbol in proportion."""
    return not of or (len(of) == 1 and not symbols(sympy.expand(size / next(iter(of)))) & of)
