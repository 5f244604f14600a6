"""Walk a graph backwards with the J^T rules (BPPSA equation 3): from cotangents of its outputs to those of its inputs.

The walk runs under the recorder, so what the operators' `mv` do to the cotangents becomes a graph of its own: the
transposed body that codegen prints. Values of the forward body it needs become placeholders with the role "value".
"""

from __future__ import annotations

import torch
from torch import Size, Tensor, fx

from bppsa.common.chain import (
    FILLS,
    ColumnSum,
    OuterGradient,
    Recurrence,
    Role,
    Transposed,
    Weight,
    is_pointwise,
    placeholders,
)
from bppsa.common.graph import nodes_in
from bppsa.fxpasses.recording.capture import saving_to
from bppsa.fxpasses.recording.recorder import Recorder
from bppsa.sparsity.rules import rule_of
from bppsa.sparsity.rules.registry import UNDERIVED

aten = torch.ops.aten


def transpose(recurrence: Recurrence) -> Transposed:
    """The backward of one step: cotangents of the next carries and outputs -> of carries, streams and parameters.

    Raises `Unsupported` where an op of the body has no rule.
    """
    walk = JacobianWalk(recurrence)
    with torch.enable_grad(), saving_to(walk.recorder), walk.recorder:
        walk.run()
    return walk.result()


class JacobianWalk:
    """One walk: the cotangents gathered so far by node, and those of parameters, which leave the loop as rows."""

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence
        self.recorder = Recorder()
        self.values: dict[fx.Node, Tensor] = {}
        self.cotangents: dict[fx.Node, Tensor] = {}
        self.zeros: set[fx.Node] = set()  # read by ops whose derivative is zero everywhere: PyTorch gives these zeros
        self.outers: list[tuple[Weight, fx.Node, Tensor]] = []
        self.sums: list[tuple[int, Tensor]] = []
        self.needs = differentiable(recurrence.body)
        self.given = [
            (node, self.input(Role(kind, i), torch.zeros_like(node.meta["val"])))
            for kind, nodes in (("g_carry", recurrence.next_carries), ("g_output", recurrence.output_nodes))
            for i, node in enumerate(nodes)
        ]

    def run(self) -> None:
        for node, g in self.given:
            self.accumulate(node, g)
        for node in reversed(self.recurrence.body.nodes):
            if node.op == "call_function" and node in self.cotangents:
                self.step(node, self.cotangents.pop(node))
            elif node in self.zeros:
                self.zeros |= self.needs.intersection(node.all_input_nodes)
        for stream in self.zeros.intersection(placeholders(self.recurrence.body, "stream")):
            value = stream.meta["val"]
            self.cotangents.setdefault(stream, torch.full(value.shape, 0.0, dtype=value.dtype))

    def step(self, node: fx.Node, g: Tensor) -> None:
        """Goes from the cotangent of an op's output to those of its operands."""
        if node.target is aten.mm.default:
            return self.matmul(node, g)
        rule = rule_of(node.target)
        args = fx.node.map_arg(node.args, lambda arg: self.operand(arg, node))
        operators = rule(*args, out=self.value(node), **node.kwargs)
        arguments = nodes_in(node.args)
        for argument, operator in zip(arguments, operators, strict=True):
            if argument in self.needs:
                self.zeros.add(argument) if operator is None else self.accumulate(argument, operator.mv(g))

    def matmul(self, node: fx.Node, g: Tensor) -> None:
        """The weight's J^T is never formed: its gradient is a product over all rows and steps, after the loop."""
        left, right = node.args
        self.outers.append((Weight.of(right), left, g))
        if left in self.needs:
            self.accumulate(left, torch.mm(g, self.value(right).t()))

    def accumulate(self, node: fx.Node, g: Tensor) -> None:
        if node not in self.needs:
            return
        shape = node.meta["val"].shape
        if node.op == "placeholder" and node.meta["role"].kind == "param":
            self.sums.append((node.meta["role"].index, self.of_features(g, shape)))
            return
        if g.dim() > 2 or len(shape) > 2:
            g = self.of_features(g, shape)
        elif g.shape != shape:  # the operand was broadcast over columns
            g = g.sum(1, keepdim=True) if len(shape) == 2 else g.sum(1)
        known = self.cotangents.get(node)
        self.cotangents[node] = g if known is None else known + g

    def of_features(self, g: Tensor, shape: Size) -> Tensor:
        """A cotangent [B, *n] of several axes, summed over those along which the operand was repeated; rows stay apart,
        also where the operand, a parameter, has none."""
        if g.dim() <= 2:
            return g
        own = (1,) * (g.dim() - len(shape)) + tuple(shape)
        repeated = [d for d in range(1, g.dim()) if own[d] != g.shape[d]]
        return g.sum(repeated, keepdim=True) if repeated else g

    def operand(self, arg: fx.Node, user: fx.Node) -> Tensor:
        """Rules of pointwise ops see operands of one shape: the broadcast is a stage of its own."""
        value = self.value(arg)
        if is_pointwise(user.target):
            return value.expand(user.meta["val"].shape)
        return value

    def value(self, node: fx.Node) -> Tensor:
        """The stand-in of a forward value within the transposed body; nothing it is computed from is computed again
        here."""
        if node not in self.values:
            role = node.meta.get("role", Role("value", node.name))
            if node.target in FILLS:
                self.values[node] = torch.full(
                    node.meta["val"].shape, FILLS[node.target](node.args), dtype=node.meta["val"].dtype
                )
            elif node.target is aten.t.default:
                self.values[node] = self.value(node.args[0]).t()
            else:
                self.values[node] = self.input(role, node.meta["val"])
        return self.values[node]

    def input(self, role: Role, stand_in: Tensor) -> Tensor:
        self.recorder.placeholder(stand_in).meta["role"] = role
        return stand_in

    def result(self) -> Transposed:
        def leaf(kind: str, count: int) -> tuple[fx.Node | None, ...]:
            found = {n.meta["role"].index: self.cotangents.get(n) for n in placeholders(self.recurrence.body, kind)}
            return tuple(self.node(found.get(i)) for i in range(count))

        result = Transposed(
            graph=self.recorder.graph,
            carries=leaf("carry", len(self.recurrence.carries)),
            streams=leaf("stream", len(self.recurrence.streams)),
            outers=tuple(OuterGradient(weight, left, self.recorder.node_of(g)) for weight, left, g in self.outers),
            sums=tuple(ColumnSum(param, self.recorder.node_of(g)) for param, g in self.sums),
        )
        rights = (*(outer.right for outer in result.outers), *(part.right for part in result.sums))
        result.graph.output((result.carries, result.streams, rights))
        result.graph.eliminate_dead_code()
        return result

    def node(self, value: Tensor | None) -> fx.Node | None:
        return None if value is None else self.recorder.node_of(value)


def passes_on(node: fx.Node) -> list[fx.Node]:
    """What a gradient may go on to. An op without a derivative is given numbers too, as in h // 0.5, that take none."""
    given = node.all_input_nodes
    if node.target not in UNDERIVED:
        return given
    return [arg for arg in given if arg.op != "placeholder" or arg.meta["role"].kind != "param"]


def differentiable(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that a gradient may pass: real-valued, and reached from an input without a detach or a comparison."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            continue
        if node.target is aten.detach.default or node.target in FILLS:
            continue
        if node.op == "placeholder" or any(arg in found for arg in passes_on(node)):
            found.add(node)
    return found
