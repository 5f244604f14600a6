"""Rewrite a recorded cell so that no value that the carry waits for is complex: each is its two parts.

What depends on x or on the parameters alone may stay complex, and is taken apart where it meets the carry: PyTorch
computes it for all steps at once. What only the outputs need is put together again where no row says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cartesian.functions import FUNCTIONS
from bppsa.fxpasses.cartesian.numbers import Cartesian, CartesianPart
from bppsa.fxpasses.cartesian.rows import ARITHMETIC, STRUCTURE, CartesianRow, of_real
from bppsa.fxpasses.cell.rewrites.line_up import CARRY, PARAM
from bppsa.fxpasses.recording.capture import Recording
from bppsa.fxpasses.spelling.expand import put_before

aten = torch.ops.aten
MEND = "write it with +, -, *, /, @, exp, abs, real and imag, or with real numbers"


def with_real_parts(
    recording: Recording,
    carries: int,
    level: Mapping[fx.Node, int],
    waiting: Collection[fx.Node],
    refused: dict[fx.Node, Reason] | None,
) -> Recording:
    """Changes the graph of the recording, whose result is (nexts, ys). A complex carry becomes two. waiting: the nodes
    that the carry waits for. refused: those of them that have no row go there; without it the first raises
    `Unsupported`."""
    graph = recording.graph
    if not any(map(is_complex, graph.nodes)):
        return recording
    rewrite = CartesianRewrite(graph, level, waiting, refused)
    starts = rewrite.starts(recording.arguments[:carries])
    rewrite.run()
    nexts, ys = recording.result
    arguments, result = (*starts, *recording.arguments[carries:]), (rewrite.nexts(nexts), rewrite.outputs(ys))
    kept = {*arguments, *(node for _, node in recording.captured), *result[0], *result[1]}
    for node in reversed(graph.nodes):
        if not node.users and node not in kept:
            graph.erase_node(node)
    return replace(recording, arguments=arguments, result=result)


class CartesianRewrite:
    def __init__(
        self,
        graph: fx.Graph,
        level: Mapping[fx.Node, int],
        waiting: Collection[fx.Node],
        refused: dict[fx.Node, Reason] | None,
    ) -> None:
        self.graph, self.level, self.waiting, self.refused = graph, level, set(waiting), refused
        self.parts: dict[fx.Node, Cartesian] = {}  # what stands for complex values, nodes in the place of tensors
        self.views: dict[fx.Node, Cartesian] = {}  # of complex values that stay
        self.joint: dict[fx.Node, fx.Node] = {}
        self.replaced: dict[fx.Node, fx.Node] = {}

    def starts(self, carries: Sequence[fx.Node]) -> list[fx.Node]:
        """Placeholders: two for a complex carry."""
        found: list[fx.Node] = []
        for node in carries:
            value = node.meta["val"]
            if is_complex(node):
                with self.graph.inserting_before(node):
                    made = [self.graph.placeholder(f"{node.name}_{name}") for name in Cartesian._fields]
                for part in made:
                    part.meta["val"] = torch.zeros(value.shape, dtype=of_real(value.dtype))
                self.parts[node] = Cartesian(*made)
            found += made if is_complex(node) else [node]
        return found

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "call_function" and any(map(is_complex, (node, *node.all_input_nodes))):
                self.visit(node)

    def visit(self, node: fx.Node) -> None:
        row = self.table(node).get(node.target)
        made = NotImplemented if row is None else self.written(node, row)
        if isinstance(made, Cartesian):
            self.parts[node] = made
        elif made is not NotImplemented:
            self.stand_for(node, made)
        else:
            if node in self.waiting:
                self.refuse(node)
            for arg in filter(self.is_gone, node.all_input_nodes):
                node.replace_input_with(arg, self.joined(arg))

    def table(self, node: fx.Node) -> Mapping[Any, CartesianRow]:
        """What of parameters is a function of complex numbers is computed once in any case, and what of x or for the
        outputs is one by a kernel of PyTorch's."""
        return STRUCTURE if self.level[node] == PARAM else FUNCTIONS if node in self.waiting else ARITHMETIC

    def refuse(self, node: fx.Node) -> None:
        reason = Reason("has no spelling in real numbers", op=str(node.target), mend=MEND)
        if self.refused is None:
            raise Unsupported(reason)
        self.refused[node] = reason

    def written(self, node: fx.Node, row: CartesianRow) -> Any:
        """What the row makes of the node's arguments."""
        if node.target is aten.view_as_real.default:
            self.select_parts(node)
        like = node.meta["val"]
        parts = {arg: self.taken_apart(arg) if is_complex(arg) else Cartesian(arg) for arg in node.all_input_nodes}

        def value(arg: fx.Node) -> Any:
            values = Cartesian(*(None if part is None else promoted(part.meta["val"], like) for part in parts[arg]))
            return values if is_complex(arg) else values.re

        def compute() -> Any:
            args, options = fx.node.map_arg((node.args, node.kwargs), value)
            return finished(row(*args, **options), like)

        given = [part for both in parts.values() for part in both if part is not None]
        return put_before(self.graph, node, given, compute)

    def select_parts(self, view: fx.Node) -> None:
        """z.real and z.imag are the parts themselves."""
        last = view.meta["val"].dim() - 1
        parts = self.taken_apart(view.args[0])
        for user in list(view.users):
            if user.target is aten.select.int and user.args[1] % (last + 1) == last:
                part = parts[user.args[2]]
                self.stand_for(user, self.zeros(view.args[0]) if part is None else part)

    def stand_for(self, node: fx.Node, other: fx.Node) -> None:
        self.replaced[node] = other
        node.replace_all_uses_with(other)

    def taken_apart(self, node: fx.Node) -> Cartesian:
        if node in self.parts:
            return self.parts[node]
        if node not in self.views:
            value = node.meta["val"]
            self.views[node] = put_before(self.graph, node.next, [node], lambda: apart(value))
        return self.views[node]

    def is_gone(self, node: fx.Node) -> bool:
        """Whether its parts are all there is: what it was made of is gone too."""
        return node in self.parts and self.level[node] == CARRY

    def joined(self, node: fx.Node) -> fx.Node:
        if node not in self.joint:
            parts = self.both(node)
            values = [part.meta["val"] for part in parts]
            self.joint[node] = put_before(self.graph, node, parts, lambda: torch.complex(*values))
        return self.joint[node]

    def both(self, node: fx.Node) -> list[fx.Node]:
        re, im = self.taken_apart(node)
        return [re, self.zeros(node) if im is None else im]

    def zeros(self, node: fx.Node) -> fx.Node:
        """The imaginary part of a value that has none."""
        re = self.taken_apart(node).re
        im = put_before(self.graph, node, [re], lambda: torch.zeros_like(re.meta["val"]))
        self.parts[node] = Cartesian(re, im)
        return im

    def nexts(self, nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        found: list[fx.Node] = []
        for node in nodes:
            found += self.both(node) if is_complex(node) else [self.latest(node)]
        return tuple(found)

    def outputs(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.joined(node) if self.is_gone(node) else self.latest(node) for node in nodes)

    def latest(self, node: Any) -> Any:
        while node in self.replaced:
            node = self.replaced[node]
        return node


def is_complex(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex()


def apart(value: Tensor) -> Cartesian:
    """Each part in memory of its own, as views of a part would else not do."""
    both = torch.view_as_real(value)
    return Cartesian(*(both.select(-1, i).clone(memory_format=torch.contiguous_format) for i in range(2)))


def promoted(value: Tensor, like: Tensor) -> Tensor:
    """A real number in the precision that an op computes in which gives `like`."""
    dtype = of_real(like.dtype)
    return value.to(dtype) if value.is_floating_point() and dtype.is_floating_point else value


def finished(result: Any, like: Tensor) -> Any:
    """The result with parts of the value's size, in the dtype of its parts; numbers are made where a tensor is."""
    if result is NotImplemented:
        return result
    dtype = of_real(like.dtype)

    def whole(part: Tensor) -> Tensor:
        part = part if part.dtype is dtype else part.to(dtype)
        return part if part.shape == like.shape else part.expand(like.shape)

    if isinstance(result, Tensor):
        return whole(result)
    first = whole(next(part for part in result if isinstance(part, Tensor)))

    def made(part: CartesianPart) -> Tensor:
        return whole(part) if isinstance(part, Tensor) else torch.full_like(first, part or 0.0)

    return Cartesian(made(result.re), None if result.im is None else made(result.im))
