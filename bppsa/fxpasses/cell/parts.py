"""A graph under construction out of nodes of a recording, for one step or for all steps at once.

Values of all steps have two layouts. Ops that treat every row alike take all steps as one batch, [T * B, *n]; all
others take them step by step, [T, *shape], within `each_step`. Going from one to the other is a view.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

from bppsa.common.chain import Role
from bppsa.fxpasses.cell.rewrites.each_step import beside, beside_all, check_each_step, depends, each_step

aten = torch.ops.aten
NAME_SIZES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default}


@dataclass
class CellPart:
    """made: values of one step, parameters, and values of all steps as one batch. stepped: values of all steps."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)
    stepped: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def input(self, node: fx.Node, role: Role) -> fx.Node:
        if node not in self.made:
            copy = self.graph.placeholder(f"{role.kind}{role.index}")
            copy.meta = {"val": node.meta["val"], "role": role, "bounds": node.meta.get("bounds")}
            self.made[node] = copy
        return self.made[node]

    def steps_input(self, node: fx.Node, role: Role) -> None:
        """Adds an input for a leaf [T, ...]; one without rows has no place in a batch of all steps."""
        self.input(node, role)
        if not node.meta["val"].dim():
            self.stepped[node] = self.made.pop(node)

    def copy(self, node: fx.Node) -> fx.Node:
        if node not in self.made:
            self.made[node] = self.graph.node_copy(node, self.stacked)
        return self.made[node]

    def batch(self, node: fx.Node) -> None:
        """The op for all steps as one batch, whose size no view may name."""
        copy = self.copy(node)
        if node.target in NAME_SIZES:
            copy.args = (copy.args[0], [-1, *node.meta["val"].shape[1:]], *copy.args[2:])

    def step(self, node: fx.Node, moves: set[fx.Node]) -> None:
        """The op for all steps at once; moves: the nodes that have a value for each step. Raises `Unsupported`."""
        if node.target is operator.getitem:
            self.stepped[node] = self.graph.call_function(operator.getitem, (self.stepped[node.args[0]], node.args[1]))
            return
        if node.target is beside:
            value, x = node.args
            self.stepped[node] = self.graph.call_function(beside_all, (self.made[value], self.each(x)))
            return
        moving = depends(node, moves.__contains__)
        check_each_step(node, moving)
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda arg: self.each(arg) if arg in moves else self.made[arg]
        )
        self.stepped[node] = self.graph.call_function(each_step, (node.target, tuple(moving), args, kwargs))

    def __contains__(self, node: fx.Node) -> bool:
        return node in self.made or node in self.stepped

    def stacked(self, node: fx.Node) -> fx.Node:
        if node not in self.made:
            shape = [-1, *node.meta["val"].shape[1:]]
            self.made[node] = self.graph.call_function(aten.reshape.default, (self.stepped[node], shape))
        return self.made[node]

    def each(self, node: fx.Node) -> fx.Node:
        if node not in self.stepped:
            shape = [-1, *node.meta["val"].shape]
            self.stepped[node] = self.graph.call_function(aten.reshape.default, (self.made[node], shape))
        return self.stepped[node]

    def all_steps(self, node: fx.Node) -> fx.Node:
        """The value of all steps, in whichever layout it is known."""
        return self.made[node] if node in self.made else self.stepped[node]
