"""Which inputs of a recurrence a gradient reaches from which of its outputs, over any number of steps."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from bppsa.common.chain import FILLS, Recurrence, Role

aten = torch.ops.aten
Roles = frozenset[Role]  # carries, streams and parameters


def reach(recurrence: Recurrence) -> tuple[Roles, ...]:
    """What each output is computed from, and after them each last carry."""
    within = of_step(recurrence.body)
    nexts = [within[node] for node in recurrence.next_carries]
    return tuple(over_steps(within[node], nexts) for node in (*recurrence.output_nodes, *recurrence.next_carries))


def of_step(body: fx.Graph) -> dict[fx.Node, Roles]:
    found: dict[fx.Node, Roles] = {}
    for node in body.nodes:
        if not passes(node):
            found[node] = frozenset()
        elif node.op == "placeholder":
            found[node] = frozenset({node.meta["role"]})
        else:
            found[node] = frozenset().union(*(found[arg] for arg in node.all_input_nodes))
    return found


def passes(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.target in FILLS or node.target is aten.detach.default:
        return False
    return not (isinstance(value, Tensor) and not value.is_floating_point())


def over_steps(inputs: Roles, nexts: list[Roles]) -> Roles:
    """`inputs`, and those of the steps before: what a carry was computed from."""
    found, waiting = inputs, list(inputs)
    while waiting:
        role = waiting.pop()
        if role.kind == "carry":
            new = nexts[int(role.index)] - found
            found |= new
            waiting += new
    return found
