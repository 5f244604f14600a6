"""Split a recorded cell by what depends on the carry: only that has to run step by step.

    params only, and rows of x alone      -> hoisted: all steps at once, before the loop
    a product of such rows with a weight  -> a stream of the body (one matmul for all steps)
    what the next carry is computed from  -> body
    what only the outputs need            -> tail: all steps at once, after the loop

Pointwise work on x, and sums over its columns, that feed the body stay in the body: cheaper there than a pass over
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.chain import FILLS, Recurrence, Role, Stream, Weight, is_pointwise
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.capture import Recording
from bppsa.fxpasses.rowwise import check_rowwise

aten = torch.ops.aten
PARAM, X, CARRY = 0, 1, 2  # how far a node is from constant
STAYS = {aten.slice.Tensor, aten.unsqueeze.default, aten.cat.default, aten.sum.dim_IntList}
COUNTS_ROWS = {aten.new_zeros.default, aten.new_ones.default, aten.new_full.default}  # their sizes are numbers


def split(recording: Recording, carries: int, xs: int, ys: Sequence[fx.Node], nexts: Sequence[fx.Node]) -> Recurrence:
    """The recording's arguments are `carries` carry leaves, then `xs` leaves of x_t, then parameters."""
    return Splitter(recording, carries, xs).split(tuple(ys), tuple(nexts))


@dataclass
class Part:
    """A graph under construction out of nodes of the recording."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def input(self, node: fx.Node, role: Role) -> fx.Node:
        if node not in self.made:
            copy = self.graph.placeholder(f"{role.kind}{role.index}")
            copy.meta = {"val": node.meta["val"], "role": role}
            self.made[node] = copy
        return self.made[node]

    def copy(self, node: fx.Node) -> fx.Node:
        if node not in self.made:
            self.made[node] = self.graph.node_copy(node, lambda arg: self.made[arg])
        return self.made[node]


class Splitter:
    """One recorded cell, taken apart by what each node depends on: parameters, x_t, or the carry."""

    def __init__(self, recording: Recording, carries: int, xs: int) -> None:
        self.replaced = distribute_concat(recording.graph)
        arguments = recording.arguments
        self.order = {node: i for i, node in enumerate(recording.graph.nodes)}
        self.carries, self.xs = arguments[:carries], arguments[carries : carries + xs]
        self.params = (*arguments[carries + xs :], *(node for _, node in recording.captured))
        self.rows = self.carries[0].meta["val"].shape[0]
        self.level = self.levels(recording.graph)
        self.streams: dict[fx.Node, Stream] = {}
        self.sources = number(self.xs)  # row values that cross into the loop: leaves of x, then hoisted ones
        self.constants = number(self.params)  # the same for parameters
        self.body = Part()

    def levels(self, graph: fx.Graph) -> dict[fx.Node, int]:
        level: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                level[node] = CARRY if node in self.carries else X if node in self.xs else PARAM
            else:
                level[node] = max((level[arg] for arg in node.all_input_nodes), default=PARAM)
        return level

    def split(self, ys: tuple[fx.Node, ...], nexts: tuple[fx.Node, ...]) -> Recurrence:
        for i, carry in enumerate(self.carries):
            self.body.input(carry, Role("carry", i))
        ys, nexts = (tuple(self.replaced.get(node, node) for node in nodes) for nodes in (ys, nexts))
        in_body = self.ancestors(nexts, at_least=CARRY)
        tail_nodes = self.ancestors(ys, at_least=X) - in_body
        for node in self.sorted(in_body):
            self.emit(node)
        outputs = self.outputs(ys, in_body, tail_nodes)
        if any(self.level[y] == PARAM for y in ys):
            raise Unsupported(Reason("an output that depends on neither carry nor x", mend="add it after the scan"))
        if any(self.level[n] == PARAM and n.target not in FILLS for n in nexts):
            raise Unsupported(Reason("a carry that depends on neither carry nor x"))
        for node in outputs:
            self.emit(node)
        tail = None if tuple(outputs) == ys else self.tail(ys, outputs, self.sorted(tail_nodes))
        body, following = self.body, tuple(self.next(n) for n in nexts)
        hoisted = self.hoisted()  # after all else: emitting is what finds out what has to be computed before the loop
        body.graph.output((following, tuple(body.made[n] for n in outputs)))
        body.graph.lint()
        return Recurrence(
            hoisted=hoisted,
            body=body.graph,
            tail=tail,
            streams=tuple(self.streams.values()),
            carries=tuple(width(n) for n in self.carries),
            outputs=tuple(width(n) for n in outputs),
        )

    def next(self, node: fx.Node) -> fx.Node:
        if self.level[node] < CARRY:
            self.emit(node)
        return self.body.made[node]

    def check_stacked(self, node: fx.Node) -> None:
        """Where all steps are one batch, an op must be rowwise, and no constant of its own may count the rows."""
        check_rowwise(node, self.rows, self.is_param)
        for arg in node.all_input_nodes:
            value, own = (
                arg.meta["val"],
                arg.target in FILLS and (self.level[arg] == PARAM or arg.target in COUNTS_ROWS),
            )
            if own and value.dim() == node.meta["val"].dim() > 0 and value.shape[0] != 1:
                raise Unsupported(
                    Reason("fills a tensor of the size of the batch", op=str(arg.target), mend="use zeros_like")
                )

    def outputs(self, ys: tuple[fx.Node, ...], in_body: set[fx.Node], tail: set[fx.Node]) -> list[fx.Node]:
        """What the loop must store for each step: the ys themselves, or what the tail reads of the body."""
        if not tail:
            return list(ys)
        wanted = [arg for node in self.sorted(tail) for arg in node.all_input_nodes] + list(ys)
        return list(dict.fromkeys(n for n in wanted if n in in_body or n in self.carries))

    def emit(self, node: fx.Node) -> fx.Node:
        """Put `node` into the body, with all it needs."""
        if node in self.body.made:
            return self.body.made[node]
        if self.level[node] == PARAM and node.target not in FILLS:
            return self.emit_param(node)
        if self.level[node] == X and not stays_with_the_body(node):
            return self.emit_stream(node)
        check_rowwise(node, self.rows, self.is_param)
        for arg in node.all_input_nodes:
            self.emit(arg)
        return self.body.copy(node)

    def emit_param(self, node: fx.Node) -> fx.Node:
        if node.target is aten.t.default:
            self.emit_param(node.args[0])
            return self.body.copy(node)
        index = self.constants.setdefault(node, len(self.constants))
        return self.body.input(node, Role("param", index))

    def emit_stream(self, node: fx.Node) -> fx.Node:
        source, weight = node, None
        if node.target is aten.mm.default and self.level[node.args[1]] == PARAM:
            source, matrix = node.args
            transposed = matrix.target is aten.t.default
            base = matrix.args[0] if transposed else matrix
            weight = Weight(self.constants.setdefault(base, len(self.constants)), transposed)
            self.body.input(base, Role("param", weight.param))
        index = self.sources.setdefault(source, len(self.sources))
        role = Role("stream", len(self.streams))
        self.streams[node] = Stream(index, weight, width(node), width(source))
        return self.body.input(node, role)

    def hoisted(self) -> fx.Graph | None:
        """None where all that crosses into the loop are leaves."""
        if len(self.sources) == len(self.xs) and len(self.constants) == len(self.params):
            return None
        part = Part()
        for i, leaf in enumerate(self.xs):
            part.input(leaf, Role("stream", i))
        for i, leaf in enumerate(self.params):
            part.input(leaf, Role("param", i))
        wanted = (*self.sources, *self.constants)
        for node in self.sorted(self.ancestors(wanted, at_least=PARAM)):
            if self.level[node] == X:
                self.check_stacked(node)
            part.copy(node)
        part.graph.output((tuple(part.made[n] for n in self.sources), tuple(part.made[n] for n in self.constants)))
        return part.graph

    def tail(self, ys: tuple[fx.Node, ...], outputs: Sequence[fx.Node], nodes: Iterable[fx.Node]) -> fx.Graph:
        part = Part()
        for i, node in enumerate(outputs):
            part.input(node, Role("output", i))
        for i, leaf in enumerate(self.xs):
            part.input(leaf, Role("stream", i))
        for i, leaf in enumerate(self.params):
            part.input(leaf, Role("param", i))
        for node in self.sorted(self.ancestors(nodes, at_least=PARAM) | set(nodes)):
            if node in part.made or node.op == "placeholder":
                continue
            if self.level[node] > PARAM:
                self.check_stacked(node)
            if all(arg in part.made for arg in node.all_input_nodes):
                part.copy(node)
        part.graph.output(tuple(part.made[n] for n in ys))
        part.graph.eliminate_dead_code()  # what the outputs, which are given here, were computed from
        return part.graph

    def ancestors(self, roots: Iterable[fx.Node], *, at_least: int) -> set[fx.Node]:
        """`roots` and all they are computed from, down to nodes below the level and to placeholders."""
        found: set[fx.Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in found or node.op == "placeholder" or self.level[node] < at_least:
                continue
            found.add(node)
            stack.extend(node.all_input_nodes)
        return found

    def sorted(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return sorted(nodes, key=self.order.__getitem__)

    def is_param(self, node: fx.Node) -> bool:
        return self.level[node] == PARAM and node.target not in FILLS


def distribute_concat(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """cat([x, h]) @ W = x @ W_top + h @ W_bottom: only the second part waits for h. Gives what stands for what."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not aten.mm.default or node.args[0].target is not aten.cat.default:
            continue
        (pieces, *_), weight = node.args[0].args, node.args[1]
        at, total = 0, None
        with graph.inserting_before(node):
            for piece in pieces:
                end = at + width(piece)
                rows = call(graph, aten.slice.Tensor, weight, 0, at, end)
                product = call(graph, aten.mm.default, piece, rows)
                total = product if total is None else call(graph, aten.add.Tensor, total, product)
                at = end
        node.replace_all_uses_with(total)
        graph.erase_node(node)
        replaced[node] = total
    return replaced


def call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda arg: arg.meta["val"]))
    return node


def number(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(nodes)}


def stays_with_the_body(node: fx.Node) -> bool:
    """Pointwise work, sums and views of rows of x; a leaf or a matmul is where a stream begins."""
    if node.op == "placeholder":
        return False
    if node.target in FILLS or node.target in STAYS:
        return True
    return is_pointwise(node.target)


def width(node: fx.Node) -> int:
    value: Tensor = node.meta["val"]
    if value.dim() > 2:
        raise Unsupported(
            Reason(f"a value of shape {list(value.shape)} in a cell", mend="keep values [batch, features]")
        )
    if value.numel() == 0:
        raise Unsupported(Reason("a value without columns in a cell", mend="leave it out"))
    return value.shape[1] if value.dim() == 2 else 1
