"""Split a recorded cell by what depends on the carry: only that has to run step by step.

    params only, and values of x alone    -> hoisted: all steps at once, before the loop, whatever the op is
    a product of such rows with a weight  -> a stream of the body (one matmul for all steps)
    what the next carry is computed from  -> body
    what only the outputs need            -> tail: all steps at once, after the loop

Pointwise work on x, and sums over its columns, that feed the body stay in the body: cheaper there than a pass over
memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import COUNTS_ROWS, FILLS, Recurrence, Role, Stream, Weight, is_pointwise
from bppsa.common.graph import ancestors
from bppsa.errors import Unsupported
from bppsa.fxpasses.cell.checks import checks_of
from bppsa.fxpasses.cell.parts import CellPart
from bppsa.fxpasses.cell.rewrites.line_up import CARRY, PARAM, X, at_each_step, levels, line_up
from bppsa.fxpasses.cell.rewrites.real_parts import is_complex
from bppsa.fxpasses.cell.rewrites.rewritten import rewritten
from bppsa.fxpasses.cell.rowwise import ALONG_DIMS, SAME_SHAPE, VIEWS, check_rowwise
from bppsa.fxpasses.recording.capture import Recording
from bppsa.fxpasses.spelling.matrices import OF_EACH_MATRIX, treats_matrices_alike

aten = torch.ops.aten
STAYS = {aten.slice.Tensor, aten.unsqueeze.default, aten.cat.default, aten.sum.dim_IntList, *VIEWS}


def split(
    recording: Recording,
    carries: int,
    xs: int,
    ys: Sequence[fx.Node],
    nexts: Sequence[fx.Node],
    in_kernels: Collection[Any] | None = None,
) -> Recurrence:
    """The recording's arguments are `carries` carry leaves, then `xs` leaves of x_t, then parameters. in_kernels: the
    ops that a kernel can do; None stands for all."""
    return Splitter(replace(recording, result=(nexts, ys)), carries, xs, in_kernels).split()


class Splitter:
    """One recorded cell, taken apart by what each node depends on: parameters, x_t, or the carry."""

    def __init__(self, recording: Recording, carries: int, xs: int, in_kernels: Collection[Any] | None) -> None:
        """The recording's result is (nexts, ys)."""
        self.in_kernels = in_kernels
        recording = rewritten(recording, carries, xs)
        arguments, (self.nexts, self.ys) = recording.arguments, recording.result
        carries = len(self.nexts)
        self.carries, self.xs = arguments[:carries], arguments[carries : carries + xs]
        self.params = (*arguments[carries + xs :], *(node for _, node in recording.captured))
        self.rows = self.carries[0].meta["val"].shape[0]
        self.level = levels(recording.graph, self.carries, self.xs)
        line_up(recording.graph, self.level, self.xs[0], self.rows)
        self.ys = tuple(at_each_step(recording.graph, y, self.level, self.xs[0]) for y in self.ys)
        self.graph = recording.graph
        self.number_nodes()

    def number_nodes(self) -> None:
        self.order = {node: i for i, node in enumerate(self.graph.nodes)}

    def split(self, before: Set[fx.Node] = frozenset()) -> Recurrence:
        """before: values of x that are made for all steps at once, whatever they are."""
        self.before = before
        self.streams: dict[fx.Node, Stream] = {}
        self.sources = number(self.xs)  # row values that cross into the loop: leaves of x, then hoisted ones
        self.constants = number(self.params)  # the same for parameters
        self.body = CellPart()
        ys, nexts = self.ys, self.nexts
        for i, carry in enumerate(self.carries):
            self.body.input(carry, Role("carry", i))
        in_body = self.waiting_for(nexts, at_least=CARRY)
        in_body |= self.narrowing(self.waiting_for(ys, at_least=CARRY) - in_body)
        tail_nodes = self.waiting_for(ys, at_least=X) - in_body
        for node in self.sorted(in_body):
            self.emit(node)
        outputs = self.outputs(ys, in_body, tail_nodes)
        if any(self.level[n] == PARAM and n.target not in FILLS for n in nexts):
            raise Unsupported("a carry that depends on neither carry nor x")
        for node in outputs:
            self.emit(node)
        tail = None if tuple(outputs) == ys else self.tail(ys, outputs, self.sorted(tail_nodes))
        checks = checks_of(self.body.graph)
        body, following = self.body, tuple(self.next(n) for n in nexts)
        hoisted = self.hoisted()  # after all else: emitting is what finds out what has to be computed before the loop
        body.graph.output((following, (*(body.made[n] for n in outputs), *checks)))
        body.graph.lint()
        return Recurrence(
            hoisted=hoisted,
            body=body.graph,
            tail=tail,
            streams=tuple(self.streams.values()),
            carries=tuple(width(n) for n in self.carries),
            outputs=(*(width(n) for n in outputs), *map(width, checks)),
            checks=len(checks),
        )

    def next(self, node: fx.Node) -> fx.Node:
        if self.level[node] < CARRY:
            self.emit(node)
        return self.body.made[node]

    def add(self, part: CellPart, node: fx.Node) -> None:
        """Adds a node to a part that runs for all steps at once: as one batch where the op treats every row alike."""
        if self.level[node] == PARAM:
            part.copy(node)
        elif self.stacks(node):
            part.batch(node)
        else:
            part.step(node, {n for n in node.all_input_nodes if self.level[n] > PARAM})

    def stacks(self, node: fx.Node) -> bool:
        """Whether all steps may be one batch to the op."""
        moving = [arg for arg in node.all_input_nodes if self.level[arg] > PARAM]
        if node.target is operator.getitem:
            return node.args[0].target in OF_EACH_MATRIX and self.stacks(node.args[0])
        if node.target in OF_EACH_MATRIX:
            return all(map(self.has_rows, moving)) and treats_matrices_alike(node, moving)
        rowwise = node.target not in COUNTS_ROWS and all(map(self.has_rows, (node, *moving)))
        return rowwise and not refuses(self.check_stacked, node)

    def has_rows(self, node: fx.Node) -> bool:
        value = node.meta["val"]
        return isinstance(value, Tensor) and value.shape[:1] == (self.rows,)

    def narrowing(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """The nodes behind the loop that read values of several axes, with all they need: what is read out of a matrix
        is smaller than the matrix, of which a tail would need that of every step. None where one has no kernel."""
        wide = [node for node in nodes if any(is_wide(arg) for arg in (node, *node.all_input_nodes))]
        found = self.waiting_for(wide, at_least=CARRY) & nodes
        known = all(has_place_in_a_body(node) and not refuses(self.check_rows, node) for node in found)
        return found if known else set()

    def check_stacked(self, node: fx.Node) -> None:
        """Where all steps are one batch, an op must be rowwise, and no constant of its own may count the rows."""
        self.check_rows(node)
        for arg in node.all_input_nodes:
            value, own = arg.meta["val"], arg.target in FILLS and self.level[arg] == PARAM
            broadcast = value.dim() > 0 and value.shape[0] == 1 and node.target is not aten.cat.default
            if own and value.dim() == node.meta["val"].dim() > 0 and not broadcast:
                raise Unsupported("fills a tensor of the size of the batch", op=str(arg.target), mend="use zeros_like")

    def outputs(self, ys: tuple[fx.Node, ...], in_body: set[fx.Node], tail: set[fx.Node]) -> list[fx.Node]:
        """What the loop must store for each step: the ys themselves, or what the tail reads of the body."""
        if not tail and all(self.level[y] == CARRY for y in ys):
            return list(ys)
        wanted = [arg for node in self.sorted(tail) for arg in node.all_input_nodes] + list(ys)
        return list(dict.fromkeys(n for n in wanted if n in in_body or n in self.carries))

    def emit(self, node: fx.Node) -> fx.Node:
        """Put `node` into the body, with all it needs."""
        if node in self.body.made:
            return self.body.made[node]
        if self.level[node] == PARAM and node.target not in FILLS:
            return self.emit_param(node)
        if self.level[node] == X and not self.stays_with_the_body(node):
            return self.emit_stream(node)
        self.check_rows(node)
        for arg in node.all_input_nodes:
            self.emit(arg)
        return self.body.copy(node)

    def stays_with_the_body(self, node: fx.Node) -> bool:
        """Pointwise work, sums and views of rows of x; a leaf or a matmul is where a stream begins, and so is what
        becomes [batch, features] again after a detour through other shapes, and what no kernel can do."""
        known = self.in_kernels is None or node.target in self.in_kernels
        if node in self.before:
            return False
        if not (node.target in FILLS or node.target in STAYS or (known and is_pointwise(node.target))):
            return False
        of_x = [arg for arg in node.all_input_nodes if self.level[arg] == X]
        real = all(is_real(arg.meta["val"]) for arg in (node, *node.all_input_nodes))
        return real and all(map(self.has_rows, (node, *of_x))) and not refuses(self.check_rows, node)

    def check_rows(self, node: fx.Node) -> None:
        check_rowwise(node, self.rows, self.is_param)

    def emit_param(self, node: fx.Node) -> fx.Node:
        if node.target is aten.t.default and all(user.target is aten.mm.default for user in node.users):
            self.emit_param(node.args[0])
            return self.body.copy(node)
        index = self.constants.setdefault(node, len(self.constants))
        return self.body.input(node, Role("param", index))

    def emit_stream(self, node: fx.Node) -> fx.Node:
        source, weight = node, None
        if not self.has_rows(node):
            shape = list(node.meta["val"].shape)
            raise Unsupported(f"a value of x of shape {shape} in a cell", mend="keep values [batch, features]")
        if node.target is aten.mm.default and self.level[node.args[1]] == PARAM and node not in self.before:
            source, matrix = node.args
            transposed = matrix.target is aten.t.default
            base = matrix.args[0] if transposed else matrix
            weight = Weight(self.constants.setdefault(base, len(self.constants)), transposed)
            self.body.input(base, Role("param", weight.param))
        index = self.sources.setdefault(source, len(self.sources))
        role = Role("stream", len(self.streams))
        self.streams[node] = Stream(index, weight, width(node), width(source))
        return self.body.input(node, role)

    def part_of_all_steps(self, outputs: Sequence[fx.Node] = ()) -> CellPart:
        """A part that is given outputs of the body, the leaves of x and the parameters."""
        part = CellPart()
        for i, node in enumerate(outputs):
            part.input(node, Role("output", i))
        for i, leaf in enumerate(self.xs):
            part.steps_input(leaf, Role("stream", i))
        for i, leaf in enumerate(self.params):
            part.input(leaf, Role("param", i))
        return part

    def hoisted(self) -> fx.Graph | None:
        """None where all that crosses into the loop are leaves."""
        if len(self.sources) == len(self.xs) and len(self.constants) == len(self.params):
            return None
        part = self.part_of_all_steps()
        wanted = (*self.sources, *self.constants)
        for node in self.sorted(self.waiting_for(wanted, at_least=PARAM)):
            self.add(part, node)
        sources = tuple(part.all_steps(n) for n in self.sources)
        part.graph.output((sources, tuple(part.made[n] for n in self.constants)))
        return part.graph

    def tail(self, ys: tuple[fx.Node, ...], outputs: Sequence[fx.Node], nodes: Iterable[fx.Node]) -> fx.Graph:
        part = self.part_of_all_steps(outputs)
        for node in self.sorted(self.waiting_for(nodes, at_least=PARAM) | set(nodes)):
            if node in part or node.op == "placeholder":
                continue
            if all(arg in part for arg in node.all_input_nodes):
                self.add(part, node)
        part.graph.output(tuple(part.all_steps(n) for n in ys))
        part.graph.eliminate_dead_code()  # what the outputs, which are given here, were computed from
        return part.graph

    def waiting_for(self, roots: Iterable[fx.Node], *, at_least: int) -> set[fx.Node]:
        """`roots` and all they are computed from, down to nodes below the level and to placeholders."""
        return ancestors(roots, lambda node: node.op != "placeholder" and self.level[node] >= at_least)

    def sorted(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return sorted(nodes, key=self.order.__getitem__)

    def is_param(self, node: fx.Node) -> bool:
        return self.level[node] == PARAM and node.target not in FILLS


def number(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(nodes)}


def refuses(check: Callable[[fx.Node], None], node: fx.Node) -> bool:
    try:
        check(node)
    except Unsupported:
        return True
    return False


def is_wide(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.dim() > 2


def is_real(value: Any) -> bool:
    """Whether it is rows of numbers that a kernel computes with."""
    known = isinstance(value, Tensor)
    return known and (value.dtype.is_floating_point or value.dtype is torch.bool)


def has_place_in_a_body(node: fx.Node) -> bool:
    """Whether a kernel may compute it; a tail computes what has none."""
    known = {*STAYS, *ALONG_DIMS, *SAME_SHAPE, aten.mm.default} - {aten.cumsum.default}
    return not is_complex(node) and (is_pointwise(node.target) or node.target in known)


def width(node: fx.Node) -> int:
    """The numbers in a row."""
    value: Tensor = node.meta["val"]
    if value.numel() == 0:
        raise Unsupported("a value without columns in a cell", mend="leave it out")
    return value.shape[1:].numel()
