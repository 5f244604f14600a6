"""What grows step by step, put together at once: the cat of a cat, along one dim, is one cat of all its pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

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
        first, *rest = items_of(op)
        if readers[first] == 1 and first.op is not None and goes_on(op, first.op) and first in pieces:
            pieces[op.outs[0]] = pieces[first]
            pieces[first] += rest
            found.remove(first.op)
        else:
            pieces[op.outs[0]] = [first, *rest]
        found.append(op)
    for op in found:
        if is_cat(op) and len(pieces[op.outs[0]]) > len(items_of(op)):
            op.join(pieces[op.outs[0]], dim_of(op))
    return found


def is_cat(op: LoggedOp) -> bool:
    return op.target is aten.cat.default and not op.spec[1] and len(op.spec[0][0]) > 1


def items_of(op: LoggedOp) -> Sequence[Any]:
    return op.leaves[: len(op.spec[0][0])]


def dim_of(op: LoggedOp) -> int:
    dim: int = op.leaves[-1] if len(op.spec[0]) > 1 else 0
    return dim % len(op.outs[0].shape)


def goes_on(op: LoggedOp, first: LoggedOp) -> bool:
    """Whether an op puts more behind what its first operand has put together."""
    return is_cat(first) and dim_of(op) == dim_of(first) and op.grad == first.grad
