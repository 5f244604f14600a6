"""A recurrence's body with every weight reduced to its diagonal: what a quasi-Newton iteration takes J^T from (as the
diagonal ParaRNN and quasi-DEER do; Gonzalez et al., 2024).

Values stay those of the body: only what a step's J^T looks like is simplified, to blocks as small as the rest of the
cell allows, one unit of a GRU's or the two numbers of an LSTM's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import Recurrence, Role, Weight, output_of

aten = torch.ops.aten


def with_diagonals(recurrence: Recurrence) -> tuple[Recurrence, tuple[Weight, ...]]:
    """The recurrence with a row in the place of each weight, and what the rows are the diagonals of.

    A product h @ W, W [K, r K], becomes r copies of h side by side times the row [1, r K] of the diagonals of W's r
    squares; the row is a placeholder of role ("diagonal", i). Through any other W nothing passes.
    """
    rewrite = DiagonalRewrite(recurrence.body)
    return replace(recurrence, body=rewrite.graph), tuple(rewrite.rows)


class DiagonalRewrite:
    def __init__(self, body: fx.Graph) -> None:
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        products = [node for node in body.nodes if node.target is aten.mm.default]
        self.rows: dict[Weight, fx.Node] = {}
        for node in (n for n in body.nodes if n.op == "placeholder"):
            self.copies[node] = self.graph.node_copy(node)
        for node in filter(is_of_squares, products):
            self.row(Weight.of(node.args[1]), node.meta["val"])
        for node in body.nodes:
            if node.op == "call_function":
                self.copies[node] = self.product(node) if node in products else self.copied(node)
        self.graph.output(fx.node.map_arg(output_of(body), self.copies.__getitem__))
        self.graph.lint()

    def row(self, weight: Weight, product: Tensor) -> None:
        if weight not in self.rows:
            role = Role("diagonal", len(self.rows))
            self.rows[weight] = self.graph.placeholder(f"{role.kind}{role.index}")
            self.rows[weight].meta.update(val=product.new_zeros(1, product.shape[1]), role=role)

    def copied(self, node: fx.Node) -> fx.Node:
        return self.graph.node_copy(node, self.copies.__getitem__)

    def product(self, node: fx.Node) -> fx.Node:
        """Under the name of the product, whose value it stands for."""
        left, right = (self.copies[operand] for operand in node.args)
        if not is_of_squares(node):
            return self.call(aten.mm.default, (self.call(aten.detach.default, (left,), left), right), node, node.name)
        depth, width = right.meta["val"].shape
        wide = left if width == depth else self.call(aten.cat.default, ([left] * (width // depth), 1), node)
        return self.call(aten.mul.Tensor, (wide, self.rows[Weight.of(node.args[1])]), node, node.name)

    def call(self, target: Any, args: tuple[Any, ...], like: fx.Node, name: str | None = None) -> fx.Node:
        made = self.graph.create_node("call_function", target, args, name=name)
        made.meta["val"] = like.meta["val"]
        return made


def is_of_squares(product: fx.Node) -> bool:
    depth, width = product.args[1].meta["val"].shape
    return bool(width % depth == 0)
