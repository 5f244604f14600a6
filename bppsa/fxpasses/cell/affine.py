"""Whether a step of a recurrence is an affine map of its carry, by the ops between the carry and the next one.

What J^T looks like does not tell: `h + (h > 0)` and `h + h.detach()` have the J^T of `h`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from bppsa.common.chain import Recurrence
from bppsa.common.graph import ancestors, nodes_in

aten = torch.ops.aten

# op -> which of its arguments may come from the carry, one at a time; None: any of them, together.
AFFINE: dict[object, Collection[int] | None] = {
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.rsub.Scalar)),
    **dict.fromkeys((aten.neg.default, aten.clone.default, aten.cat.default, aten.alias.default)),
    **dict.fromkeys((aten.slice.Tensor, aten.unsqueeze.default, aten.squeeze.dim, aten.sum.dim_IntList)),
    aten.mul.Tensor: (0, 1),
    aten.mul.Scalar: (0,),
    aten.div.Tensor: (0,),
    aten.div.Scalar: (0,),
    aten.mm.default: (0,),
    aten.masked_fill.Scalar: (0,),
    aten.where.self: (1, 2),  # what it chooses between, not what by
}


def is_affine(recurrence: Recurrence) -> bool:
    """An op that is not known to be affine counts as none."""
    from_carry: set[fx.Node] = set()
    for node in between(recurrence):
        role = node.meta.get("role")
        if role is not None and role.kind == "carry":
            from_carry.add(node)
        elif not from_carry.isdisjoint(node.all_input_nodes):
            from_carry.add(node)
            at = [i for i, arg in enumerate(node.args) if not from_carry.isdisjoint(nodes_in(arg))]
            open_to = AFFINE.get(node.target, ())
            if open_to is not None and (len(at) != 1 or at[0] not in open_to):
                return False
    return True


def between(recurrence: Recurrence) -> list[fx.Node]:
    """The nodes that the next carries are computed from, in order."""
    found = ancestors(recurrence.next_carries)
    return [node for node in recurrence.body.nodes if node in found]
