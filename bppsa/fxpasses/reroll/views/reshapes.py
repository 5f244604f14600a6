"""Views that only name the dims of a value anew, put together: `[B, H]` as `[1, B, H]` and back is no op.

A layer that is called for one step, as nn.LSTM may be, wraps each step in them, and a value would be carried in
another shape than it is computed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue

aten = torch.ops.aten
ALWAYS = {
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.alias.default),
}
IF_OF_ONE = {aten.select.int, aten.unbind.int, aten.cat.default, aten.stack.default, aten.slice.Tensor}
IF_IN_ORDER = {aten.transpose.int, aten.permute.default, aten.t.default}


def for_any_order(ops: Sequence[LoggedOp]) -> list[LoggedOp]:
    """Makes the log's views reshapes, and returns its ops: what a scan is given and what it hands on may lie in memory
    in another order than in the call that was logged, as a state does that a layer has transposed, and PyTorch then has
    no view of it."""
    for op in ops:
        if op.target is aten.view.default:
            op.target = aten.reshape.default
    return list(ops)


def without_detours(ops: Sequence[LoggedOp], result: Sequence[LoggedValue]) -> tuple[list[LoggedOp], list[LoggedValue]]:
    """The ops, reshapes of reshapes being one, and those that change nothing none."""
    stands: dict[LoggedValue, LoggedValue] = {}
    made: dict[LoggedValue, LoggedValue] = {}  # reshapes, of what
    found = []
    for op in ops:
        op.put(stands)
        source = reshaped(op) if op.grad and len(op.outs) == 1 else None
        if source is None:
            found.append(op)
            continue
        out = op.outs[0]
        direct = source
        while source in made:
            source = made[source]
        if source.shape == out.shape:
            stands[out] = source
            continue
        made[out] = source
        if source is direct:
            found.append(op)
            continue
        op.target, op.single = aten.reshape.default, True
        op.leaves, op.spec = [source, *out.shape], ((None, (None,) * len(out.shape)), ())
        found.append(op)
    return found, [stands.get(value, value) for value in result]


def reshaped(op: LoggedOp) -> LoggedValue | None:
    """What the op gives in another shape and the same order; None where it does more."""
    values = [leaf for leaf in op.leaves if isinstance(leaf, LoggedValue)]
    if len(values) != 1 or values[0].constant or values[0].dtype != op.outs[0].dtype:
        return None
    target, value, out = op.target, values[0], op.outs[0]
    if target in ALWAYS:
        return value
    same = prod(value.shape) == prod(out.shape)
    if same and target in IF_OF_ONE:
        return value
    return value if target in IF_IN_ORDER and is_in_order(op, value) else None


def is_in_order(op: LoggedOp, value: LoggedValue) -> bool:
    """Whether dims of more than one stay in their order."""
    if len(value.shape) < 2:
        return True
    dims = list(range(len(value.shape)))
    order: list[Any] = dims
    if op.target is aten.permute.default:
        order = [dim % len(dims) for dim in op.leaves[1:]]
    else:
        one, other = (dim % len(dims) for dim in op.leaves[1:]) if len(op.leaves) > 2 else (0, len(dims) - 1)
        order[one], order[other] = order[other], order[one]
    moved = [dim for dim in order if value.shape[dim] != 1]
    return moved == sorted(moved)
