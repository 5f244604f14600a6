"""Why a loop's steps are no repetition: how many in a row do the same, and the first op that is another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bppsa.errors import Reason
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import LoggedOp
from bppsa.fxpasses.reroll.repetition.period import LEAST_STEPS, colours, longest
from bppsa.fxpasses.reroll.repetition.written import WrittenLoop

NOT_ALIKE = "its steps are not alike"
MEND = "do the same ops on the same shapes in each step, and choose with torch.where, by a mask made before the loop"
LONGER = "detach less often, or make its parts longer"
FEWEST = 2  # steps that repeat one another
MOST_STEPS = 0.75  # of all


def unlike(loop: WrittenLoop | None) -> Reason:
    """Returns why a loop is no scan in which nothing repeats itself often enough. loop: None where it is not known."""
    if loop is None:
        return Reason(NOT_ALIKE, mend=MEND)
    ops = [op for step in loop.steps for op in step]
    colour = dict(zip(ops, colours(ops), strict=True))
    steps = [[colour[op] for op in step] for step in loop.steps]
    for before, after in zip(loop.steps[1:], loop.steps[2:], strict=False):  # a first one may begin in another way
        for one, other in zip(before, after, strict=False):
            if colour[one] != colour[other]:
                what = f"{NOT_ALIKE}{what_differs(one, other)}{in_a_row(steps)}"
                return Reason(what, op=str(other.target), mend=MEND, path=place(other.lines))
    whole = loop.steps[1:-1]  # the last one ends where the next would begin
    for before, after in itertools.pairwise(whole):
        shorter, longer = sorted((before, after), key=len)
        if len(shorter) < len(longer):
            op = longer[len(shorter)]
            what = f"{NOT_ALIKE}: this is done in one, and not in the one {'before' if longer is after else 'behind'}"
            return Reason(f"{what}{in_a_row(steps)}", op=str(op.target), mend=MEND, path=place(op.lines))
    return Reason(f"{NOT_ALIKE}{in_a_row(steps)}", mend=MEND)


def in_parts(loop: WrittenLoop, ops: Sequence[LoggedOp]) -> Reason | None:
    """Returns why it is no scan where it ends and begins again, each time after few steps, as between detached states.
    ops: all that the call did."""
    at = {op: i for i, op in enumerate(ops)}
    parts = [1]
    for before, after in itertools.pairwise(loop.steps):
        if at[after[0]] == at[before[-1]] + 1:
            parts[-1] += 1
        else:
            parts.append(1)
    if len(parts) < FEWEST or max(parts) >= LEAST_STEPS:
        return None
    what = f"runs {max(parts)} steps at most before it ends and begins again"
    return Reason(f"{what}; fewer than {LEAST_STEPS} gain nothing by a scan", mend=LONGER)


def in_a_row(steps: Sequence[list[int]]) -> str:
    """Says that too few of the steps do the same as those before them: one by one, or a period of them that is most of
    all. How many is not told, as what a step does before its cut counts for the step before."""
    known: dict[tuple[int, ...], int] = {}
    run = longest([known.setdefault(tuple(step), len(known)) for step in steps], FEWEST)
    if run is None or run.stop - run.start >= LEAST_STEPS * run.period:
        return ""
    if run.period > 1 and run.stop - run.start > MOST_STEPS * len(steps):
        return f"; {run.period} of them together repeat, but fewer than {LEAST_STEPS} times"
    return f"; fewer than {LEAST_STEPS} of {len(steps)} in a row are"


def what_differs(before: LoggedOp, after: LoggedOp) -> str:
    if (before.target, before.lines) != (after.target, after.lines):
        return ": this is done in one, and not in the one before"
    counts = [sum(1 for _ in op.operands) for op in (before, after)]
    if counts[0] != counts[1]:
        return f": it reads {counts[0]} tensors, and {counts[1]} a step later"
    shapes = [[list(value.shape) for value in (*op.operands, *op.outs)] for op in (before, after)]
    changed = next(((one, other) for one, other in zip(*shapes, strict=True) if one != other), None)
    if changed:
        return f": a tensor of {changed[0]} is one of {changed[1]} a step later"
    return ": it reads another tensor in each"
