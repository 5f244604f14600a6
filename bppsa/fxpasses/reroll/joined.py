"""What grows step by step, put together at once: the cat of a cat, along one dim, is one cat of all its pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue

aten = torch.ops.aten


def joined(ops: Sequence[LoggedOp], result: Sequence[LoggedValue]) -> list[LoggedOp]:
    """`ops`, each cat that only another one begins with being part of that."""
    readers = Counter(value for op in ops for value in op.operands) + Counter(result)
    pieces: dict[LoggedValue, list[LoggedValue]] = {}  # of cats that are to be parts
    found = []
    for op in ops:
        if not is_cat(op):
            found.append(op)
            continue
        first, *rest = op.leaves[:-1]
        begins = pieces.get(first) if readers[first] == 1 and dim_of(first) == op.leaves[-1] else None
        if begins is not None:
            begins += rest
            pieces[op.outs[0]] = begins
            found.remove(first.op)
        else:
            pieces[op.outs[0]] = [first, *rest]
        found.append(op)
    for op in found:
        if is_cat(op) and len(pieces[op.outs[0]]) > len(op.leaves) - 1:
            items = pieces[op.outs[0]]
            op.leaves, op.spec = [*items, op.leaves[-1]], (((None,) * len(items), None), ())
    return found


def is_cat(op: LoggedOp) -> bool:
    return op.target is aten.cat.default and op.grad and len(op.spec[0]) == 2 and len(op.spec[0][0]) > 1


def dim_of(value: LoggedValue) -> int | None:
    return value.op.leaves[-1] if value.op is not None and is_cat(value.op) else None
