"""A loop of a log becomes one scan: what may be done for all steps before it or after it stays the ops that it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.reroll.assemble import Assembler
from bppsa.fxpasses.reroll.body import Body
from bppsa.fxpasses.reroll.log.ops import Like, LoggedOp, LoggedValue, draws
from bppsa.fxpasses.reroll.reader import body_of
from bppsa.fxpasses.reroll.repetition.relate import UnrolledLoop
from bppsa.fxpasses.reroll.step import WHOLE, LoopStep, StepCut
from bppsa.fxpasses.reroll.views.columns import OpWriter

ScanFunction = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
Fuse = Callable[[Body, int], ScanFunction]  # a step, and how many; raises `Unsupported` where it cannot be one kernel

CUTS = (StepCut(), StepCut(given=True), StepCut(given=True, tail=True))


class Unsurveyed(Unsupported):
    """A step that cannot be one kernel. survey: finds all that stands in the way, which takes as long as a plan."""

    def __init__(self, reason: Reason, survey: Callable[[], Reason]) -> None:
        super().__init__(reason)
        self.survey = survey


def rewritten(
    ops: Sequence[LoggedOp], loop: UnrolledLoop, result: Sequence[LoggedValue], fuse: Fuse
) -> tuple[list[LoggedOp], LoggedOp, Assembler]:
    """The ops with a scan in the loop's place, the op of the scan, and what stands for each value of the loop.

    Raises `Unsupported` where no way of cutting the step gives one that can be fused, with the first one's reason: of
    those that hold matrices or whole numbers, where there are any.
    """
    reasons: dict[tuple[bool, bool], Unsupported] = {}
    for cut in cuts(ops, loop):
        try:
            step = LoopStep(ops, loop, result, cut)
            body, write, given = body_of(step)
            fused = fuse(body, loop.steps)
        except Unsupported as unsupported:
            reasons.setdefault((cut.moved, cut.whole), unsupported)
            continue
        return finished(step, body, write, given, fused)
    told = reasons[max(reasons)]
    if isinstance(told, Unsurveyed):
        raise Unsupported(told.survey()) from told
    raise told


def cuts(ops: Sequence[LoggedOp], loop: UnrolledLoop) -> Iterator[StepCut]:
    """whole: where the carry waits for whole numbers; moved: where it waits for values whose rows are elsewhere; alone:
    where no dimension of the carry is the batch's."""
    values = [value for op in ops[loop.start : loop.stop] for value in op.outs]
    of_whole = (False, True) if any(value.dtype in WHOLE for value in values) else (False,)
    of_matrices = (False, True) if any(len(value.shape) > 2 for value in values) else (False,)
    ways = [
        *((False, moved, whole) for moved in of_matrices for whole in of_whole),
        *((True, False, w) for w in of_whole),
    ]
    for (alone, moved, whole), cut in itertools.product(ways, CUTS):
        yield replace(cut, alone=alone, moved=moved, whole=whole)


def finished(
    step: LoopStep, body: Body, write: OpWriter, given: list[LoggedValue], fused: ScanFunction
) -> tuple[list[LoggedOp], LoggedOp, Assembler]:
    loop, ops = step.loop, step.ops
    around = [*step.ops_before(), *step.ops_behind()]
    if list(filter(draws, around)) != list(filter(draws, ops[loop.start : loop.stop])):
        raise Unsupported("draws random numbers for its carry and for its outputs in turn")
    likes: list[Like | LoggedValue] = [
        *body.carries,
        *(Like((loop.steps, *value.shape), value.dtype) for value in step.outputs_of_step()),
    ]
    starts = [loop.starts[made] for made in step.carries]
    scan = write(fused, [starts, given, list(body.same)], *likes, single=False)
    assembler = Assembler(scan.outs, step.finals(), step.places(len(body.carries)))
    assembler.same(step.same_values())
    inside = [*step.ops_before(), *write.ops, *step.ops_behind(), *ops[loop.stop :]]
    return [*ops[: loop.start], *(new for op in inside for new in assembler.read_by(op))], scan, assembler
