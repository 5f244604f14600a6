"""One call of a feed-forward model whose backward is a scan over its stages.

Forward: the recorded graph runs once, each stage on a detached input, so that each has a small autograd graph of its
own. Backward: the cotangents of all cuts, in a segment with rules by a scan over J^T, through a stage without rules by
autograd; then the parameters' gradients of all stages, whose graphs nothing ties together, by one call of autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from bppsa.common.chain import Chain, ChainStage
from bppsa.common.leaves import needed_gradients
from bppsa.plan import levels
from bppsa.plan.strategy import Division
from bppsa.runtime.chain.operator_scan import cotangents
from bppsa.runtime.chain.stages import StageJacobian
from bppsa.runtime.recurrent.scan.extent import Given
from bppsa.sparsity.links import NodeMasks


@dataclass(frozen=True, eq=False)
class StageBoundaries:
    """What a forward leaves in the order of `ChainProgram.cuts`: the tensors that end stages, with their autograd
    graphs, and those that the next stages began with."""

    results: tuple[Tensor, ...]
    ends: tuple[Tensor, ...]
    starts: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class ChainProgram:
    """A chain made to run. results: nodes of the outputs; needs: of the graph's placeholders in order, whether each
    wants a gradient; divisions: by the start of each segment with rules, the order in which its stages are combined."""

    def __init__(
        self,
        chain: Chain,
        results: Sequence[fx.Node],
        needs: Sequence[bool],
        divisions: Mapping[fx.Node, Division],
        masks: NodeMasks,
    ) -> None:
        self.chain, self.results, self.needs = chain, tuple(results), tuple(needs)
        self.divisions, self.masks = divisions, masks
        stages = chain.stages
        self.cuts = (stages[0].start, *(stage.end for stage in stages))
        self.differentiated = {stage.start for stage in stages if stage.reason is not None}
        self.ends_chain = self.results == (self.cuts[-1],)
        if not self.ends_chain:
            self.differentiated.add(self.cuts[-1])
        self.inputs = [node for node in chain.graph.nodes if node.op == "placeholder"]
        self.read = read_by_rules(stages)
        self.module = self.cut_graph()
        self.plain = plain_graph(chain.graph, self.results)
        self.draws = any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in chain.graph.nodes)
        self.changed = [i for i, node in enumerate(self.inputs) if any(is_change_of(node, user) for user in node.users)]
        self.differentiable = differentiable_results(self.inputs, self.needs, chain.graph, self.results)

    def cut_graph(self) -> fx.GraphModule:
        """The graph with every cut replaced by a tensor of its own for those who read it."""
        graph = fx.Graph()
        new: dict[fx.Node, fx.Node] = {}
        ends: dict[fx.Node, fx.Node] = {}
        for node in self.chain.graph.nodes:
            new[node] = graph.node_copy(node, new.__getitem__)
            if node in self.cuts:
                ends[node] = new[node]
                if node is not self.cuts[-1] or not self.ends_chain:
                    new[node] = graph.call_function(begin, (new[node], node in self.differentiated))
        graph.output(
            (
                [new[node] for node in self.results],
                [ends[node] for node in self.cuts],
                [new[node] for node in self.cuts],
                [new[node] for node in self.read],
            )
        )
        return fx.GraphModule({}, graph)

    def forward(self, tensors: Sequence[Tensor]) -> StageBoundaries:
        """tensors: in the order of the placeholders, detached from what came before."""
        return StageBoundaries(*map(tuple, self.module(*tensors)))

    def backward(
        self, passed: StageBoundaries, values: Sequence[Tensor], wanted: Sequence[Tensor], grads: Given
    ) -> Given:
        """The gradients of `wanted`, aliases of the inputs. values: what the rules read."""
        return ChainBackward(self, passed, dict(zip(self.read, values, strict=True)), wanted).run(grads)


class ChainBackward:
    """One backward: the gradients gathered so far."""

    def __init__(
        self, program: ChainProgram, passed: StageBoundaries, values: dict[fx.Node, Tensor], wanted: Sequence[Tensor]
    ) -> None:
        self.program, self.values, self.wanted = program, values, wanted
        self.results = passed.results
        self.end = dict(zip(program.cuts, passed.ends, strict=True))
        self.start = dict(zip(program.cuts, passed.starts, strict=True))
        self.total: list[Tensor | None] = [None] * len(wanted)
        self.known: list[tuple[Tensor, Tensor]] = []  # ends of stages with rules, and their cotangents

    def run(self, grads: Given) -> list[Tensor | None]:
        program = self.program
        g = grads[0] if program.ends_chain else self.through(self.results, grads, program.cuts[-1])
        for segment in reversed(program.chain.segments):
            if g is None:
                break
            if segment[0].reason is None:
                g = self.scan(segment, g)
            else:
                g = self.through([self.end[segment[0].end]], [g], segment[0].start)
        first = program.cuts[0]
        if g is not None and first.op == "placeholder":
            self.add(program.inputs.index(first), g)
        elif g is not None:
            self.known.append((self.end[first], g))
        self.through([end for end, _ in self.known], [g for _, g in self.known], None)
        return self.total

    def scan(self, segment: Sequence[ChainStage], g: Tensor) -> Tensor | None:
        """The cotangent of the segment's start."""
        stages = segment[::-1]
        elements = [StageJacobian(stage, self.values.__getitem__) for stage in stages]
        division = self.program.divisions[segment[0].start]
        entering = self.by_products(division, stages, g) if division.forms_products else None
        if entering is None:
            entering = cotangents(one_by_one(len(stages)), elements, g)
        self.known += [(self.end[stage.end], g) for stage, g in zip(stages, entering, strict=True)]
        return elements[-1].mv(entering[-1]) if self.is_needed(segment[0].start) else None

    def by_products(self, division: Division, stages: Sequence[ChainStage], g: Tensor) -> list[Tensor] | None:
        """The cotangents by a scan that multiplies J^Ts; None where a product left the range of its type, which
        back-propagation may stay within: it only ever forms the product with one vector."""
        real = real_of(g.dtype, g.device.type)

        def value(node: fx.Node) -> Tensor:
            known = self.values[node]
            return known.to(real) if known.is_floating_point() else known

        elements = [StageJacobian(stage, value, self.program.masks) for stage in stages]
        entering = cotangents(division, elements, g.to(real))
        if not all(bool(found.isfinite().all()) for found in entering):
            return None
        return [found.to(self.end[stage.end].dtype) for found, stage in zip(entering, stages, strict=True)]

    def is_needed(self, start: fx.Node) -> bool:
        """Whether anything before this cut has a gradient; an input of the chain may have none."""
        program = self.program
        return start.op != "placeholder" or program.needs[program.inputs.index(start)]

    def through(self, ends: Sequence[Tensor], grads: Given, start: fx.Node | None) -> Tensor | None:
        """Runs back by autograd: adds to the gradients of `wanted`, and returns that of the cut `start`."""
        tensors = [*self.wanted, *([] if start is None else [self.start[start]])]
        needs = [tensor.requires_grad for tensor in tensors]
        # stages may share what is made of parameters alone, so the graph stays
        found = needed_gradients(ends, grads, tensors, needs, retain_graph=True)
        at = None if start is None else found.pop()
        for i, g in enumerate(found):
            if g is not None:
                self.add(i, g)
        return at

    def add(self, i: int, g: Tensor) -> None:
        before = self.total[i]
        self.total[i] = g if before is None else before + g


def real_of(dtype: torch.dtype, device: str) -> torch.dtype:
    """The dtype in which products of J^Ts are formed: a CPU has float64 at little more cost."""
    return torch.float64 if device == "cpu" else dtype


def one_by_one(stages: int) -> Division:
    return Division(stages, 1, levels.linear(1))


def begin(x: Tensor, differentiated: bool) -> Tensor:
    """What a stage begins with: x, cut off from the stages before."""
    return x.detach().requires_grad_(differentiated)


def read_by_rules(stages: Sequence[ChainStage]) -> tuple[fx.Node, ...]:
    """The nodes whose values the rules are given."""
    found: dict[fx.Node, None] = {}
    for stage in stages:
        for node in stage.nodes if stage.reason is None else ():
            results = () if is_tensor(node) else node.users
            around = (node, *node.all_input_nodes, *results)
            found.update(dict.fromkeys(other for other in around if is_tensor(other)))
    return tuple(found)


def is_change_of(node: fx.Node, user: fx.Node) -> bool:
    """Whether `user` writes to `node`, a buffer of the model."""
    return isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable and user.args[0] is node


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def plain_graph(graph: fx.Graph, results: Sequence[fx.Node]) -> fx.GraphModule:
    """The graph as it was recorded, for PyTorch to differentiate."""
    new = fx.Graph()
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        known[node] = new.node_copy(node, known.__getitem__)
    new.output([known[node] for node in results])
    return fx.GraphModule({}, new)


def differentiable_results(
    inputs: Sequence[fx.Node], needs: Sequence[bool], graph: fx.Graph, results: Sequence[fx.Node]
) -> list[bool]:
    reached = {node for node, need in zip(inputs, needs, strict=True) if need}
    for node in graph.nodes:
        passes = node.op == "call_function" and node.target is not torch.ops.aten.detach.default
        if passes and not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return [node in reached and is_tensor(node) and node.meta["val"].is_floating_point() for node in results]
