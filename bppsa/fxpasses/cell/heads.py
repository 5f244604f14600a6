"""Heads as rows: a cell that treats each head alike, and by itself, is one of a single head over more rows. So threads
need not share a row where the batch is small, and what a kernel holds of a row stays in a nearer cache.

A value [B, h * k, ...] becomes [B * h, k, ...]: the same numbers in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import FILLS, Recurrence, Stream, is_pointwise, output_of
from bppsa.fxpasses.cell.parts import NAME_SIZES
from bppsa.fxpasses.cell.recurrence import Splitter
from bppsa.fxpasses.cell.rewrites.each_step import beside
from bppsa.fxpasses.cell.rewrites.line_up import CARRY, PARAM, X, inserted
from bppsa.fxpasses.cell.rowwise import ALONG_DIMS, SAME_SHAPE

aten = torch.ops.aten
LARGE = 2048  # numbers of a head's state, from which on its work outweighs what a row costs


class Mixes(Exception):
    """A value that is of more than one head, or of none."""


def split_by_heads(splitter: Splitter) -> Recurrence:
    """The recurrence of the cell, with its heads as rows where their states are large and no op has to do with several.
    Of what x alone says the ops that have are done before the loop, as where it is one product for all heads."""
    whole = splitter.split()
    heads = heads_of(whole)
    if heads is None:
        return whole
    give_heads(splitter, heads)
    parted = splitter.split(mixing(splitter, heads))
    if any(stream.width >= max(whole.carries) for stream in parted.streams):  # as an outer product of x alone is
        return whole
    try:
        return Apart(parted, heads).done()
    except Mixes:
        return whole


def heads_of(recurrence: Recurrence) -> int | None:
    """The size of the dimension behind the rows, where all carries have it and a head's state is large."""
    given = [node for node in recurrence.body.nodes if node.op == "placeholder"]
    shapes = [node.meta["val"].shape for node in given if node.meta["role"].kind == "carry"]
    sizes = {shape[1] if len(shape) > 1 else 1 for shape in shapes}
    if len(sizes) != 1 or sizes == {1}:
        return None
    (heads,) = sizes
    return heads if max(recurrence.carries) >= LARGE * heads else None


def give_heads(splitter: Splitter, heads: int) -> None:
    """Writes what meets the carry as values of x that have heads: parameters that differ by head, as decays do, the
    same in every step, and values of x that all heads share. What meets x alone is made before the loop."""
    for node in tuple(splitter.order):
        if is_pointwise(node.target) and splitter.level[node] == CARRY and is_whole(node, heads):
            for arg in node.all_input_nodes:
                give_heads_to(arg, node, splitter)
    splitter.number_nodes()


def give_heads_to(arg: fx.Node, node: fx.Node, splitter: Splitter) -> None:
    """Gives heads to an operand that all heads share, or that has no rows."""
    own, shape, level = arg.meta["val"].shape, node.meta["val"].shape, splitter.level

    def given(value: fx.Node, op: Any, args: tuple[Any, ...]) -> fx.Node:
        return inserted(splitter.graph, node, level, op, (value, *args), {})

    if level[arg] == PARAM and arg.target not in FILLS and differs_by_head(own, shape):
        each = given(arg, beside, (splitter.xs[0],))
        behind = own[len(own) - len(shape) + 1 :]
        node.replace_input_with(arg, given(each, aten.expand.default, ([splitter.rows, *behind],)))
    elif level[arg] == X and len(own) == len(shape) and own[1] == 1:
        node.replace_input_with(arg, given(arg, aten.expand.default, ([splitter.rows, shape[1], *own[2:]],)))


def differs_by_head(own: torch.Size, shape: torch.Size) -> bool:
    """Whether the dimension behind the rows is one of an operand that has no rows."""
    behind = len(own) - len(shape) + 1
    return behind in (0, 1) and own[behind] == shape[1] and own[:behind].numel() == 1


def mixing(splitter: Splitter, heads: int) -> set[fx.Node]:
    """The values of x alone that a body of one head has no place for."""
    of_x = [n for n in splitter.order if splitter.level[n] == X and isinstance(n.meta.get("val"), Tensor)]
    whole = {node for node in of_x if is_whole(node, heads)}  # as they are, or once they are made before
    return {node for node in of_x if node not in whole or not treats_heads_alike(node, whole)}


class Apart:
    """The body, made anew node by node. Raises `Mixes`."""

    def __init__(self, recurrence: Recurrence, heads: int) -> None:
        self.recurrence, self.heads = recurrence, heads
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.apart: set[fx.Node] = set()  # those whose rows are of heads

    def done(self) -> Recurrence:
        before, h = self.recurrence, self.heads
        for node in before.body.nodes:
            if node.op != "output":
                self.made[node] = self.copy(node)
        nexts, outputs = output_of(before.body)
        if not self.apart.issuperset((*nexts, *outputs)):
            raise Mixes
        self.graph.output(fx.node.map_arg((nexts, outputs), self.made.__getitem__))
        streams = tuple(Stream(s.source, None, s.width // h, s.depth // h) for s in before.streams)
        carries, widths = (tuple(n // h for n in sizes) for sizes in (before.carries, before.outputs))
        return replace(before, body=self.graph, streams=streams, carries=carries, outputs=widths, heads=h)

    def copy(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node, self.made.__getitem__)
        if self.is_shared(node):
            return copy
        if not (is_whole(node, self.heads) and (node.op == "placeholder" or treats_heads_alike(node, self.apart))):
            raise Mixes
        rows, first, *rest = node.meta["val"].shape
        sizes = [rows * self.heads, first // self.heads, *rest]
        if node.target in NAME_SIZES:
            copy.args = (copy.args[0], [-1, *sizes[1:]], *copy.args[2:])
        copy.meta = {**node.meta, "val": node.meta["val"].new_empty(sizes)}
        self.apart.add(node)
        return copy

    def is_shared(self, node: fx.Node) -> bool:
        """Whether it is the same for all rows: a number, a parameter, or made of these."""
        if node.op == "placeholder":
            return bool(node.meta["role"].kind == "param")
        counts_rows = node.target in FILLS and node.meta["val"].dim() > 0
        return not counts_rows and self.apart.isdisjoint(node.all_input_nodes)


def is_whole(node: fx.Node, heads: int) -> bool:
    """Whether the dimension behind the rows is so many heads, one after the other."""
    shape = node.meta["val"].shape
    return len(shape) > 1 and shape[1] % heads == 0


def treats_heads_alike(node: fx.Node, apart: set[fx.Node]) -> bool:
    """Whether each head of the result is computed of the same head of the operands, in one way. apart: those that have
    heads; others are parameters and numbers."""
    check = next((check for check, known in CHECKS if known(node.target)), None)
    return check is not None and check(node, apart)


def lines_up(node: fx.Node, apart: set[fx.Node]) -> bool:
    """Whether heads meet heads in a pointwise op, and all of them the same number of a parameter."""
    shape = node.meta["val"].shape
    for arg in node.all_input_nodes:
        own = arg.meta["val"].shape
        if arg in apart:
            fits = own[:2] == shape[:2] and len(own) == len(shape)
        else:
            fits = len(own) < len(shape) - 1 or own[len(own) - len(shape) + 1] == 1
        if not fits:
            return False
    return True


def goes_along_others(node: fx.Node, apart: set[fx.Node]) -> bool:
    """Whether the dimensions that it names are neither the rows nor that of the heads."""
    first: Any = node.args[0]
    first = first[0] if isinstance(first, (list, tuple)) else first
    rank = first.meta["val"].dim() + (node.target is aten.unsqueeze.default)
    named = [dim for at in ALONG_DIMS[node.target] for dim in listed(node.args[at] if len(node.args) > at else 0)]
    return bool(named) and all(dim % rank > 1 for dim in named) and apart.issuperset(node.all_input_nodes)


def stays_in_order(node: fx.Node, apart: set[fx.Node]) -> bool:
    order: Any = node.args[1]
    return [dim % len(order) for dim in order[:2]] == [0, 1] and apart.issuperset(node.all_input_nodes)


def repeats_others(node: fx.Node, apart: set[fx.Node]) -> bool:
    own, shape = node.args[0].meta["val"].shape, node.meta["val"].shape
    return own[:2] == shape[:2] and len(own) == len(shape) and apart.issuperset(node.all_input_nodes)


def keeps_numbers(node: fx.Node, apart: set[fx.Node]) -> bool:
    """Whether a view is of heads alone: their numbers stand one after the other before and behind it."""
    return apart.issuperset(node.all_input_nodes)


def listed(dims: Any) -> list[int]:
    return list(dims) if isinstance(dims, (list, tuple)) else [dims]


# What tells of an op whether it treats each head alike, and by itself; asked in order.
CHECKS: tuple[tuple[Callable[[fx.Node, set[fx.Node]], bool], Callable[[Any], bool]], ...] = (
    (goes_along_others, ALONG_DIMS.__contains__),
    (stays_in_order, {aten.permute.default}.__contains__),
    (repeats_others, {aten.expand.default}.__contains__),
    (keeps_numbers, {aten.view.default, aten._unsafe_view.default, *SAME_SHAPE}.__contains__),
    (lines_up, is_pointwise),
)
