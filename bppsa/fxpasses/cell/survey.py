"""Everything that keeps a recorded cell from being fused, each with the user's line: one refusal tells them all."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from bppsa.common.chain import FILLS
from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cell.rewrites.line_up import PARAM, levels, line_up
from bppsa.fxpasses.cell.rewrites.rewritten import rewritten, waiting
from bppsa.fxpasses.cell.rowwise import check_rowwise
from bppsa.fxpasses.recording.capture import Recording
from bppsa.sparsity.rules import lookup
from bppsa.sparsity.rules.registry import UNDERIVED

NO_KERNEL = "write it with ops that have one; of x alone any op will do"
# Where complex values that have no parts meet those that have some.
JOINTS = (torch.ops.aten.complex.default, torch.ops.aten.view_as_real.default)
MOST = 8  # that are told


@dataclass(frozen=True)
class Reasons(Reason):
    """Several: the first is what stopped the passes."""

    others: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        more = len(self.others) - MOST
        rest = [*map(str, self.others[:MOST]), *([f"{more} more"] if more > 0 else [])]
        return "\n    and ".join([super().__str__(), *rest])


def told(first: Reason, recording: Recording, carries: int, xs: int, in_kernels: Collection[Any]) -> Reason:
    """The reason with its line, and with all others of the cell."""
    found = list(dict.fromkeys(blockers(recording, carries, xs, in_kernels)))
    own = next((reason for reason in found if (reason.op, reason.what) == (first.op, first.what)), None)
    own = own or next((reason for reason in found if reason.op and reason.op == first.op), None)
    path = own.path if own is not None else first.path or only_line(recording.graph, first.op)
    others = tuple(reason for reason in found if reason is not own)
    return Reasons(first.what, first.op, (own.mend if own is not None else "") or first.mend, path, others)


def only_line(graph: fx.Graph, op: str) -> str:
    """The user's, where all such ops come from one."""
    lines = {node.meta.get("line", "") for node in graph.nodes if str(node.target) == op}
    return lines.pop() if len(lines) == 1 else ""


def blockers(recording: Recording, carries: int, xs: int, in_kernels: Collection[Any]) -> Iterator[Reason]:
    """What stands in the way among the ops that the next carries wait for, one reason each."""
    refused: dict[fx.Node, Reason] = {}
    recording = rewritten(recording, carries, xs, refused)
    graph, (nexts, _) = recording.graph, recording.result
    given = recording.arguments[: len(nexts)], recording.arguments[len(nexts) : len(nexts) + xs]
    rows, level = given[0][0].meta["val"].shape[0], levels(graph, *given)
    line_up(graph, level, given[1][0], rows)
    lost = set(refused)  # and what is made of these: where its rows are is not known

    def is_param(node: fx.Node) -> bool:
        return level[node] == PARAM and node.target not in FILLS

    def check(node: fx.Node) -> None:
        if node in refused:
            raise Unsupported(refused[node])
        if node.target in JOINTS or not lost.isdisjoint(node.all_input_nodes):
            lost.add(node)
        else:
            check_rowwise(node, rows, is_param)
        check_known(node, in_kernels)

    for node in waiting(graph, nexts, *given):
        try:
            check(node)
        except Unsupported as unsupported:
            lost.add(node)
            yield replace(unsupported.reason, path=node.meta.get("line", ""))


def check_known(node: fx.Node, in_kernels: Collection[Any]) -> None:
    if node.target in (operator.getitem, *JOINTS):  # the op before or behind it is told
        return
    if node.target not in in_kernels:
        raise Unsupported("has no kernel", op=str(node.target), mend=NO_KERNEL)
    if node.meta["val"].is_floating_point() and isinstance(found := lookup(node.target), Reason):
        raise Unsupported(found if node.target in UNDERIVED else replace(found, mend=NO_KERNEL))
