"""Heads as rows: a cell that treats each head alike, and by itself, is one of a single head over more rows. So threads
need not share a row where the batch is small, and what a kernel holds of a row stays in a nearer cache.

A value [B, h * k, ...] becomes [B * h, k, ...]: the same numbers in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS, Recurrence, Stream, is_pointwise, output_of
from bppsa.fxpasses.cell.parts import NAME_SIZES
from bppsa.fxpasses.cell.rowwise import ALONG_DIMS, SAME_SHAPE

aten = torch.ops.aten
LARGE = 2048  # numbers of a head's state, from which on its work outweighs what a row costs


class Mixes(Exception):
    """A value that is of more than one head, or of none."""


def with_heads_as_rows(recurrence: Recurrence) -> Recurrence:
    """The recurrence as it is where heads are few, or where one op has to do with several."""
    heads = heads_of(recurrence)
    if heads is None:
        return recurrence
    try:
        return Apart(recurrence, heads).done()
    except Mixes:
        return recurrence


def heads_of(recurrence: Recurrence) -> int | None:
    """The size of the dimension behind the rows, where all carries have it and the largest is a matrix behind it."""
    shapes = [node.meta["val"].shape for node in recurrence.body.nodes if is_input(node, "carry")]
    sizes = {shape[1] if len(shape) > 1 else 1 for shape in shapes}
    weighted = any(stream.weight is not None for stream in recurrence.streams)
    if len(sizes) != 1 or sizes == {1} or weighted:
        return None
    (heads,) = sizes
    return heads if max(recurrence.carries) >= LARGE * heads else None


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
        carries, widths = ([n // h for n in sizes] for sizes in (before.carries, before.outputs))
        return replace(before, body=self.graph, streams=streams, carries=tuple(carries), outputs=tuple(widths), heads=h)

    def copy(self, node: fx.Node) -> fx.Node:
        if node.op == "placeholder":
            return self.input(node)
        apart = [arg for arg in node.all_input_nodes if arg in self.apart]
        if not apart:
            return self.of_none(node)
        check = next((check for check, known in CHECKS if known(node.target)), None)
        if check is None or not check(self, node):
            raise Mixes
        copy = self.graph.node_copy(node, self.made.__getitem__)
        if node.target in NAME_SIZES:
            copy.args = (copy.args[0], [-1, *self.sizes(node)[1:]], *copy.args[2:])
        return self.known(node, copy)

    def input(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node)
        return copy if node.meta["role"].kind == "param" else self.known(node, copy)

    def known(self, node: fx.Node, copy: fx.Node) -> fx.Node:
        self.apart.add(node)
        copy.meta = {**node.meta, "val": node.meta["val"].new_empty(self.sizes(node))}
        return copy

    def sizes(self, node: fx.Node) -> list[int]:
        rows, first, *rest = (*node.meta["val"].shape, 1) if node.meta["val"].dim() == 1 else node.meta["val"].shape
        if first % self.heads:
            raise Mixes
        return [rows * self.heads, first // self.heads, *rest]

    def of_none(self, node: fx.Node) -> fx.Node:
        """A number, or what is computed of parameters alone."""
        if node.target in FILLS and node.meta["val"].dim():
            raise Mixes
        return self.graph.node_copy(node, self.made.__getitem__)

    def lines_up(self, node: fx.Node) -> bool:
        """Whether heads meet heads, and all of them the same number of a parameter."""
        shape = node.meta["val"].shape
        for arg in node.all_input_nodes:
            own = arg.meta["val"].shape
            if arg in self.apart:
                fits = own[:2] == shape[:2] and len(own) == len(shape)
            else:
                fits = len(own) < len(shape) - 1 or own[len(own) - len(shape) + 1] == 1
            if not fits:
                return False
        return True

    def goes_along_others(self, node: fx.Node) -> bool:
        """Whether the dimensions that it names are neither the rows nor that of the heads."""
        rank = self.first(node).meta["val"].dim() + (node.target is aten.unsqueeze.default)
        named = [dim for at in ALONG_DIMS[node.target] for dim in listed(node.args[at] if len(node.args) > at else 0)]
        return bool(named) and all(dim % rank > 1 for dim in named) and self.apart.issuperset(node.all_input_nodes)

    def first(self, node: fx.Node) -> Any:
        return node.args[0][0] if isinstance(node.args[0], (list, tuple)) else node.args[0]

    def stays_in_order(self, node: fx.Node) -> bool:
        return [dim % len(node.args[1]) for dim in node.args[1][:2]] == [0, 1]

    def repeats_others(self, node: fx.Node) -> bool:
        own, shape = node.args[0].meta["val"].shape, node.meta["val"].shape
        return own[:2] == shape[:2] and len(own) == len(shape)

    def keeps(self, node: fx.Node) -> bool:
        """Of a view: the heads' numbers stand one after the other before and behind it."""
        return True


def listed(dims: Any) -> list[int]:
    return list(dims) if isinstance(dims, (list, tuple)) else [dims]


def is_input(node: fx.Node, kind: str) -> bool:
    return node.op == "placeholder" and node.meta["role"].kind == kind


# What tells of an op whether it treats each head alike, and by itself; asked in order.
CHECKS: tuple[tuple[Callable[[Apart, fx.Node], bool], Callable[[Any], bool]], ...] = (
    (Apart.goes_along_others, ALONG_DIMS.__contains__),
    (Apart.stays_in_order, {aten.permute.default}.__contains__),
    (Apart.repeats_others, {aten.expand.default}.__contains__),
    (Apart.keeps, {aten.view.default, aten._unsafe_view.default, *SAME_SHAPE}.__contains__),
    (Apart.lines_up, is_pointwise),
)
