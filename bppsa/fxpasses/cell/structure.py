"""Which entries of a step's transposed Jacobian can be non-zero, and the blocks they make (BPPSA section 3.3).

The patterns are those of the ops' rules, found from shapes alone; the walk only multiplies and adds them.
"""

from __future__ import annotations

import networkx
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from bppsa.common.chain import Recurrence, Structure, is_pointwise
from bppsa.common.graph import nodes_in
from bppsa.fxpasses.cell.affine import is_affine
from bppsa.fxpasses.network.jacobian import differentiable
from bppsa.sparsity.operators.simple import Diagonal, Identity
from bppsa.sparsity.operators.transposed import TransposedJacobian
from bppsa.sparsity.rules import rule_of

MOST = 1024  # numbers in a carry of several axes of which a pattern is looked for


def is_too_wide(recurrence: Recurrence) -> bool:
    """Whether patterns of what is computed on the way, a matrix times a vector, say, would fill the memory: then J^T
    counts as dense."""
    several = any(isinstance(v := n.meta.get("val"), Tensor) and v.dim() > 2 for n in recurrence.body.nodes)
    return several and sum(recurrence.carries) > MOST


def structure_of(recurrence: Recurrence) -> Structure:
    """Rows that depend on each other over any number of steps share a block. Blocks of several sizes become one."""
    with _disable_current_modes(), torch.no_grad():  # hooks on saved tensors are none of our business
        total = sum(recurrence.carries)
        if is_too_wide(recurrence):
            return Structure(torch.arange(total)[None], total * total, is_affine(recurrence))
        mask = pattern(recurrence)
        blocks = connected(mask)
        if len({len(block) for block in blocks}) > 1:
            blocks = [list(range(len(mask)))]
        return Structure(torch.tensor(blocks), int(mask.sum()), is_affine(recurrence))


def connected(mask: Tensor) -> list[list[int]]:
    """The connected components of rows and columns, by their least member. mask: bool [N, N]"""
    if int(mask.sum()) == int(mask.diagonal().sum()):
        return [[n] for n in range(len(mask))]
    kinds, kind_of = torch.unique(mask, dim=0, return_inverse=True)  # many rows have one pattern: few edges then
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(mask)))
    filled = kinds.any(1).tolist()
    graph.add_edges_from((row, -1 - kind) for row, kind in enumerate(kind_of.tolist()) if filled[kind])
    graph.add_edges_from((-1 - kind, column) for kind, column in kinds.nonzero().tolist())
    return sorted(sorted(n for n in block if n >= 0) for block in networkx.connected_components(graph))


def pattern(recurrence: Recurrence) -> Tensor:
    """bool [N, N]: rows are the carry before the step, columns the one after it, leaves side by side."""
    total = sum(recurrence.carries)
    known: dict[fx.Node, Tensor] = {}
    real = differentiable(recurrence.body)
    at = 0
    for node, width in zip(recurrence.next_carries, recurrence.carries, strict=True):
        columns = torch.zeros(width, total, dtype=torch.bool)
        columns[:, at : at + width] = torch.eye(width, dtype=torch.bool)
        merge(known, node, columns)
        at += width
    for node in reversed(recurrence.body.nodes):
        if node.op == "call_function" and node in known:
            columns = known.pop(node)
            for argument, operator in factors(node, real):
                merge(known, argument, times(operator, argument, node, columns))
    carries = {n.meta["role"].index: n for n in recurrence.body.nodes if n in known and n.meta["role"].kind == "carry"}
    rows = [
        known[carries[i]] if i in carries else torch.zeros(width, total, dtype=torch.bool)
        for i, width in enumerate(recurrence.carries)
    ]
    return torch.cat(rows)


def factors(node: fx.Node, real: set[fx.Node]) -> list[tuple[fx.Node, TransposedJacobian]]:
    """The op's own transposed Jacobians, for the arguments that a gradient reaches."""
    if node not in real:
        return []
    out = node.meta["val"]
    pointwise = is_pointwise(node.target)

    def stand_in(argument: fx.Node) -> Tensor:
        value = argument.meta["val"]
        return value.expand(out.shape) if pointwise else value

    rule = rule_of(node.target)
    operators = rule(*fx.node.map_arg(node.args, stand_in), out=out, **node.kwargs)
    arguments = nodes_in(node.args)
    found = []
    for argument, operator in zip(arguments, operators, strict=True):
        if operator is not None and argument in real and not is_parameter(argument):
            found.append((argument, operator))
    return found


def is_parameter(node: fx.Node) -> bool:
    role = node.meta.get("role")
    return node.target is torch.ops.aten.t.default or (role is not None and role.kind == "param")


def times(operator: TransposedJacobian, argument: fx.Node, node: fx.Node, columns: Tensor) -> Tensor:
    """The pattern of the operator times `columns`, bool [M, N]."""
    width = argument.meta["val"].shape[1:].numel()
    if isinstance(operator, (Identity, Diagonal)) and width == len(columns):
        return columns
    links = links_of(operator, argument.meta["val"], node.meta["val"])
    return (links.float() @ columns.float()) > 0


def links_of(operator: TransposedJacobian, argument: Tensor, out: Tensor) -> Tensor:
    """bool [N, M] of the argument itself, which may have been broadcast over columns."""
    rows, columns = (value.shape[1:].numel() for value in (argument, out))
    mask = operator.pattern.mask()
    return mask if len(mask) == rows else mask.any(0, keepdim=True).expand(rows, columns)


def merge(known: dict[fx.Node, Tensor], node: fx.Node, columns: Tensor) -> None:
    before = known.get(node)
    known[node] = columns if before is None else before | columns
