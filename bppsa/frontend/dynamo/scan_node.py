"""torch's scan node in a traced graph, in terms of our op: hoisted work before it, the tail after it, all in the
graph."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.codegen.cpu import build as compiler
from bppsa.errors import Unsupported
from bppsa.frontend.cell.fused_cell import CellPlan, put_on
from bppsa.frontend.cell.plans import plan_of
from bppsa.frontend.dynamo.ops import SCANS, VERSION
from bppsa.frontend.ordinary import device_of
from bppsa.fxpasses.cell.instead import INSTEAD
from bppsa.fxpasses.cell.rewrites.each_step import counts_rows
from bppsa.fxpasses.recording.capture import record

aten = torch.ops.aten


def inline_scan(graph: fx.GraphModule, node: fx.Node, strategy: str, forward: str) -> None:
    """Replace scan(cell, carry, xs, extra) -> [*carry, *ys]; a cell that cannot be fused stays torch's.

    The cell is a graph (*carry, *x_t, *extra) -> [*carry, *y_t]; xs and ys are [T, B, ...].
    """
    cell, *groups = node.args
    examples: list[list[Any]] = [[getattr(arg, "meta", {}).get("example_value") for arg in g] for g in groups]
    values = [value for group in examples for value in group]
    if node.kwargs or not all(isinstance(value, Tensor) for value in values):
        return  # a size that changes from call to call is an input too
    device = device_of(values)
    if not has_kernels(device) or any(value.device != device for value in values):
        return
    try:
        key, plan = plan_for(graph.get_submodule(cell.target), *examples)
    except Unsupported:
        return
    if device.type == "cuda" and plan.without_gpu is not None:
        return
    save = any(value.requires_grad for value in node.meta["example_value"])
    with graph.graph.inserting_before(node):
        results = Inline(graph.graph, plan, groups, device).emit(key, strategy, forward, save)
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def has_kernels(device: torch.device) -> bool:
    return not compiler.available() if device.type == "cpu" else find_spec("triton") is not None


def plan_for(
    cell: fx.GraphModule, carry: Sequence[Tensor], xs: Sequence[Tensor], extra: Sequence[Tensor]
) -> tuple[str, CellPlan]:
    """Its key says all the plan depends on: Inductor's caches outlive the process."""
    with _disable_current_modes():
        like = [[stand_in(t) for t in carry], [stand_in(x, 1) for x in xs], [stand_in(t) for t in extra]]
    if any(t.dim() == 0 for t in (*like[0], *like[1])):
        raise Unsupported("a value without a batch dimension")
    if any(t.is_complex() for group in like for t in group):
        raise Unsupported("complex numbers in a graph")

    def flat(carry: Sequence[Tensor], xs: Sequence[Tensor], *extra: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        results = cell(*carry, *xs, *extra)
        return list(results[: len(carry)]), list(results[len(carry) :])

    constants = [(name, t.dtype, t.tolist()) for name, t in (*cell.named_parameters(), *cell.named_buffers())]
    text = cell.code + str([[(tuple(t.shape), t.dtype) for t in group] for group in like]) + str((constants, VERSION))
    key = hashlib.sha256(text.encode()).hexdigest()
    if key not in SCANS:
        with _disable_current_modes():
            recording = record(flat, (like[0], like[1], *like[2]), instead=INSTEAD)
        plan = plan_of(recording, len(carry), len(xs), tuple(t for t, _ in recording.captured), None)
        check_any_rows(plan)
        SCANS[key] = plan
    return key, SCANS[key]


def check_any_rows(plan: CellPlan) -> None:
    """Raise `Unsupported` where the plan holds for one batch size only, or gives what is no real number."""
    recurrence = plan.recurrence
    if recurrence.checks:
        raise Unsupported("linear algebra, or a choice that equal numbers leave to PyTorch, in a graph")
    if plan.growth is not None or any(dtype is not plan.dtype for dtype in plan.carry_dtypes):
        raise Unsupported("whole numbers or truth values that a step hands on, in a graph")
    if any(graph is not None and counts_rows(graph) for graph in (recurrence.hoisted, recurrence.tail)):
        raise Unsupported("an op that runs step by step in a graph for any batch size")
    if any(node.meta["val"].dtype is not plan.dtype for node in recurrence.output_nodes):
        raise Unsupported("an output of truth values", mend="make it a number: y.to(x.dtype)")


def stand_in(fake: Tensor, skip: int = 0) -> Tensor:
    """Zeros of its size as it was when traced; nothing here depends on a size that changes."""
    sizes = [size if isinstance(size, int) else size.node.hint for size in fake.shape[skip:]]
    return torch.zeros(sizes, dtype=fake.dtype, device="cpu")


class Inline:
    """The nodes of one plan, put where the graph is being inserted to."""

    def __init__(
        self, graph: fx.Graph, plan: CellPlan, groups: Sequence[Sequence[fx.Node]], device: torch.device
    ) -> None:
        self.graph, self.plan, self.device = graph, plan, device
        self.carry, self.xs, self.extra = groups
        self.steps, self.rows = (self.call(aten.sym_size.int, self.xs[0], dim) for dim in (0, 1))

    def emit(self, key: str, strategy: str, forward: str, save: bool) -> list[fx.Node]:
        plan = self.plan
        params = [*self.extra, *map(self.constant, plan.places)]
        stacked = [self.call(torch.flatten, x, 0, 1) for x in self.xs]
        sources: Sequence[fx.Node] = stacked
        given = [*stacked, *params]
        if plan.recurrence.hoisted is not None:
            sources, params = self.inline(plan.recurrence.hoisted, given)
        dtype = plan.dtype
        carries = [self.reshape(c, -1, width) for c, width in zip(self.carry, plan.recurrence.carries, strict=True)]
        rows = self.rows if plan.recurrence.heads == 1 else self.call(operator.mul, self.rows, plan.recurrence.heads)
        read = [self.call(torch.Tensor.to, self.reshape(s, self.steps, rows, -1), dtype) for s in sources]
        op = self.call(torch.ops.bppsa.scan, read, carries, list(params), key, False, strategy, forward, save)
        count, many = len(plan.recurrence.outputs), len(self.carry)
        outputs = [self.call(operator.getitem, op, i) for i in range(count)]
        finals = [self.call(operator.getitem, op, count + i) for i in range(many)]
        ys: Sequence[fx.Node] = outputs
        if plan.recurrence.tail is not None:
            flat = [
                self.reshape(o, -1, *shape) for o, shape in zip(outputs, plan.recurrence.output_shapes, strict=True)
            ]
            ys = self.inline(plan.recurrence.tail, [*flat, *given])
        return [
            *(self.reshape(f, self.rows, *shape[1:]) for f, shape in zip(finals, plan.carry_shapes, strict=True)),
            *(self.reshape(y, self.steps, self.rows, *shape[1:]) for y, shape in zip(ys, plan.y_shapes, strict=True)),
        ]

    def inline(self, part: fx.Graph, inputs: Sequence[fx.Node]) -> Any:
        copies = dict(zip((n for n in part.nodes if n.op == "placeholder"), inputs, strict=True))
        results = self.graph.graph_copy(part, copies)
        put_on((copies[node] for node in part.nodes if node in copies), self.device)
        return results

    def constant(self, tensor: Any) -> fx.Node:
        return self.graph.call_function(
            torch.tensor, (tensor.tolist(),), {"dtype": tensor.dtype, "device": self.device}
        )

    def reshape(self, value: fx.Node, *sizes: Any) -> fx.Node:
        return self.call(torch.reshape, value, list(sizes))

    def call(self, target: Any, *args: Any) -> fx.Node:
        return self.graph.call_function(target, args)
