"""Why a loop's steps are no repetition: the first op that is another one than a step before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bppsa.errors import Reason
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import LoggedOp
from bppsa.fxpasses.reroll.repetition.period import colours, longest

NOT_ALIKE = "its steps are not alike"


def unlike(ops: Sequence[LoggedOp]) -> Reason:
    """Of the ops of one call, in which nothing was found that repeats itself."""
    known: dict[Any, int] = {}
    run = longest([known.setdefault((op.target, op.lines), len(known)) for op in ops])
    if run is None:
        return Reason(NOT_ALIKE, mend="a loop does the same ops in each step")
    members = ops[run.start : run.stop]
    found = colours(members)
    for i in range(run.period, len(members)):
        if found[i] != found[i - run.period]:
            return difference(members[i - run.period], members[i])
    return Reason(NOT_ALIKE)


def difference(before: LoggedOp, after: LoggedOp) -> Reason:
    return Reason(f"{NOT_ALIKE}: {what_differs(before, after)}", op=str(after.target), path=place(after.lines))


def what_differs(before: LoggedOp, after: LoggedOp) -> str:
    counts = [sum(1 for _ in op.operands) for op in (before, after)]
    if counts[0] != counts[1]:
        return f"it reads {counts[0]} tensors, and {counts[1]} a step later"
    shapes = [[list(value.shape) for value in (*op.operands, *op.outs)] for op in (before, after)]
    changed = next(((one, other) for one, other in zip(*shapes, strict=True) if one != other), None)
    return (
        f"a tensor of {changed[0]} is one of {changed[1]} a step later"
        if changed
        else "it reads another tensor in each"
    )
