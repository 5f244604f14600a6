"""Pointwise ops on `[1, B, H]`, done on `[B, H]`: nn.LSTM and nn.GRU hand on their states with a dim of layers first,
and what a loop does to a state between two of their steps would carry it in that shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.common.chain import is_pointwise
from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue, draws
from bppsa.fxpasses.reroll.views.columns import OpWriter
from bppsa.fxpasses.reroll.views.reshapes import aten, reshaped

LEAST = 3  # dims
COPIES = (aten.clone.default, aten._to_copy.default, aten.cat.default, aten.stack.default)


def without_leading(ops: Sequence[LoggedOp]) -> list[LoggedOp]:
    """The ops, those on values that have been given a first dim of one being done without it, as far as nothing but
    such ops has values of that shape."""
    shapes = {tuple(op.outs[0].shape) for op in ops if gives_leading(op)}
    shapes -= {tuple(v.shape) for op in ops for v in (*op.outs, *op.operands) if tuple(v.shape) in shapes and mixes(op)}
    if not shapes:
        return list(ops)
    narrow: dict[LoggedValue, LoggedValue] = {}
    behind: dict[LoggedOp | None, list[LoggedOp]] = {}  # by who makes the value, so that all steps read it alike
    write = OpWriter()

    def of(leaf: object, dims: int) -> object:
        if not isinstance(leaf, LoggedValue) or len(leaf.shape) < dims:
            return leaf
        if leaf not in narrow:
            narrow[leaf] = write.one(aten.reshape.default, [leaf, list(leaf.shape[1:])], leaf.shape[1:], leaf.dtype)
            behind.setdefault(leaf.op, []).append(write.ops.pop())
        return narrow[leaf]

    done: list[LoggedOp] = []
    for op in ops:
        if is_pointwise(op.target) and len(op.outs) == 1 and tuple(op.outs[0].shape) in shapes:
            out = op.outs[0]
            inner = LoggedOp(op.target, [of(leaf, len(out.shape)) for leaf in op.leaves], op.spec, op.grad, op.lines)
            done.append(inner.gives(Like(out.shape[1:], out.dtype)))
            op.target, op.grad = aten.reshape.default, True
            op.leaves, op.spec = [inner.outs[0], *out.shape], ((None, (None,) * len(out.shape)), ())
        done.append(op)
    return [each for op in (None, *done) for each in ([op] if op else []) + behind.get(op, [])]


def gives_leading(op: LoggedOp) -> bool:
    """Whether it gives a value a first dim of one."""
    source = reshaped(op) if len(op.outs) == 1 else None
    return source is not None and len(op.outs[0].shape) >= LEAST and (1, *source.shape) == tuple(op.outs[0].shape)


def mixes(op: LoggedOp) -> bool:
    """Whether it is a product, a sum or the like: a first dim of what it reads and makes may be a batch of one row."""
    if is_pointwise(op.target) or op.target in COPIES or draws(op) or not any(op.operands):
        return False
    schema = getattr(op.target, "_schema", None)
    is_view = schema is not None and any(argument.alias_info is not None for argument in schema.arguments)
    return not is_view and reshaped(op) is None
