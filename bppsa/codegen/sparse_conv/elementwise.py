"""A pointwise function of blocked images and the product with its J^T, as kernels of the kernel language.

An image is rows of a cache line here; what a line computes does not depend on any other. The backward computes again
what it needs of the forward: that is cheaper than memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from bppsa.codegen.language.expr import Access, Expr, const, load
from bppsa.codegen.language.ir import Buffer, Group, Kernel, Kind, Store
from bppsa.codegen.language.verify import verify
from bppsa.codegen.lowering.pointwise import POINTWISE
from bppsa.common.chain import FILLS, HANDED_ON, Recurrence, Role, Transposed
from bppsa.errors import Unsupported

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Elementwise:
    """y = f(x0, x1, ...): a body whose streams are the images, without carry, and its transposed body."""

    body: Recurrence
    values: dict[fx.Node, Expr]  # `values_of` the body
    transposed: Transposed

    @property
    def operands(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.body.streams))]

    @property
    def reached(self) -> list[int]:
        """The images that have a cotangent."""
        return [i for i, node in enumerate(self.transposed.streams) if node is not None]

    def forward(self, width: int) -> Kernel:
        """Arguments: x0, x1, ..., y."""
        (result,) = self.body.output_nodes
        return kernel("pointwise", self.operands, {"y": self.values[result]}, width)

    def backward(self, width: int) -> Kernel:
        """Arguments: y's cotangent g, x0, x1, ..., and the cotangents of those that are reached."""
        by_name = {node.name: expr for node, expr in self.values.items()}
        leaves: dict[str, Callable[[Role], Expr]] = {
            "g_output": lambda role: load(Access("g")),
            "stream": lambda role: load(Access(f"x{role.index}")),
            "value": lambda role: by_name[str(role.index)],
        }
        values = expressions(self.transposed.graph, lambda role: leaves[role.kind](role))
        found = {f"g{i}": values[node] for i, node in enumerate(self.transposed.streams) if node is not None}
        return kernel("pointwise_backward", ["g", *self.operands], found, width)


def kernel(name: str, operands: list[str], results: dict[str, Expr], width: int) -> Kernel:
    buffers = tuple(Buffer(name, Kind.STREAM, width) for name in (*operands, *results))
    stores = tuple(Store(Access(target), value) for target, value in results.items())
    return verify(Kernel(name, buffers, (Group(width, stores),)))


def values_of(body: Recurrence) -> dict[fx.Node, Expr]:
    """What each node of the body computes. Raises Unsupported for what the kernel language has no words for."""
    return expressions(body.body, lambda role: load(Access(f"x{role.index}")))


def expressions(graph: fx.Graph, leaf: Callable[[Role], Expr]) -> dict[fx.Node, Expr]:
    """Raises Unsupported for what the kernel language has no words for."""
    found: dict[fx.Node, Expr] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            found[node] = leaf(node.meta["role"])
        elif node.op == "call_function":
            found[node] = expression(node, fx.node.map_aggregate(node.args, lambda arg: found.get(arg, arg)))
    return found


def expression(node: fx.Node, args: Any) -> Expr:
    target: Any = node.target
    truths = [arg for arg in node.all_input_nodes if arg.meta["val"].dtype is torch.bool]
    if target in FILLS:
        return const(FILLS[target](node.args))
    if target in HANDED_ON:
        if node.meta["val"].dtype is not node.args[0].meta["val"].dtype:  # and rounds
            raise Unsupported("changes the dtype", op=str(target))
        if torch.device(node.kwargs.get("device") or "cpu").type != "cpu":
            raise Unsupported("changes the device", op=str(target))
        return args[0]
    if target not in POINTWISE or (target is aten.add.Tensor and truths):
        raise Unsupported("has no kernel", op=str(target))
    built = POINTWISE[target](*args, **node.kwargs)
    if built is None:
        raise Unsupported(f"has no kernel for the arguments {node.args}", op=str(target))
    return built
