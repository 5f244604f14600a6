"""Recurrences by ATen ops, one step after the other: what the sweeps are tested against, what runs where no kernel can
be built, and what autograd differentiates when gradients of gradients are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from bppsa.common.chain import Recurrence
from bppsa.runtime.recurrent.after import logical
from bppsa.runtime.recurrent.scan.extent import Extent


def loop(cell: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
    """The definition of a scan. xs: a pytree of [T, ...], T >= 1; ys are stacked over the steps in the order of xs."""
    leaves, spec = pytree.tree_flatten(xs)
    steps = range(leaves[0].shape[0])
    ys = []
    for t in reversed(steps) if reverse else steps:
        carry, y = cell(carry, pytree.tree_unflatten([leaf[t] for leaf in leaves], spec))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, pytree.tree_map(lambda *rows: torch.stack(rows), *ys)


def run(
    recurrence: Recurrence,
    sources: Sequence[Tensor],
    carries: Sequence[Tensor],
    params: Sequence[Tensor],
    extent: Extent,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The body of a split recurrence: sources [T, B, n], carries [B, n] -> outputs [T, B, n], final carries [B, n]."""
    body = fx.GraphModule({}, recurrence.body)
    streams = [
        sources[s.source] if s.weight is None else sources[s.source] @ logical(params, s.weight)
        for s in recurrence.streams
    ]
    inputs = [node for node in recurrence.body.nodes if node.op == "placeholder"]
    roles, stand_ins = [node.meta["role"] for node in inputs], [node.meta["val"] for node in inputs]

    def step(carry: Sequence[Tensor], x: Sequence[Tensor]) -> tuple[Any, Any]:
        known = {"carry": carry, "stream": x, "param": params}
        values = [known[role.kind][role.index] for role in roles]
        given = [
            (value if role.kind == "param" else value.reshape(-1, *like.shape[1:])).to(like.dtype)
            for value, role, like in zip(values, roles, stand_ins, strict=True)
        ]
        nexts, outputs = body(*given)
        return [as_rows(value) for value in nexts], [as_rows(value) for value in outputs]

    steps = torch.empty(extent.steps, 0)  # tells their number where the body reads nothing but the carry
    carry, outputs = loop(step, list(carries), [*streams, steps], reverse=extent.reverse)
    return tuple(outputs), tuple(carry)


def as_rows(value: Tensor) -> Tensor:
    return value if value.dim() == 2 else value.reshape(len(value), -1)
