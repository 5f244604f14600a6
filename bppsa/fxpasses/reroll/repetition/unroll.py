"""A loop, unrolled again and compared with the log that it was found in, op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue
from bppsa.fxpasses.reroll.repetition.relate import Made, Outside, Plain, Relation, UnrolledLoop, VaryingNumber


def is_as_logged(loop: UnrolledLoop, ops: Sequence[LoggedOp]) -> bool:
    """Whether the loop, unrolled, is what the log says, to each operand and number."""
    model = ops[loop.start : loop.start + loop.period]
    return all(
        is_same_op(
            ops[loop.start + k * loop.period + j], op, [leaf(relation, loop, k, ops) for relation in loop.relations[j]]
        )
        for k in range(loop.steps)
        for j, op in enumerate(model)
    )


def is_same_op(op: LoggedOp, model: LoggedOp, leaves: list[Any]) -> bool:
    what = (op.target, op.spec, op.grad, op.single, len(op.outs))
    if what != (model.target, model.spec, model.grad, model.single, len(model.outs)):
        return False
    return len(leaves) == len(op.leaves) and all(map(is_same, leaves, op.leaves))


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, LoggedValue) or isinstance(other, LoggedValue):
        return one is other
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def leaf(relation: Relation, loop: UnrolledLoop, step: int, ops: Sequence[LoggedOp]) -> Any:
    if isinstance(relation, Plain):
        return relation.value
    if isinstance(relation, (VaryingNumber, Outside)):
        return relation.values[step]
    return made(relation, loop, step, ops)


def made(relation: Made, loop: UnrolledLoop, step: int, ops: Sequence[LoggedOp]) -> LoggedValue:
    if step < relation.before:
        return loop.starts[Made(relation.op, relation.item, relation.before - step)]
    return ops[loop.start + (step - relation.before) * loop.period + relation.op].outs[relation.item]
