"""Truth values that Python reads in a loop, as `assert h.isfinite().all()` and the checks of torch.distributions do.

Where all steps of a call decide alike, others are taken to do the same: what was read becomes one result more of the
call, which tells afterwards whether they did.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.cell.cell_recorder import OF_ALL, OF_ANY
from bppsa.fxpasses.recording.recorder import CHOOSE
from bppsa.fxpasses.reroll.log.lines import place
from bppsa.fxpasses.reroll.log.ops import Log, LoggedValue, ReadTruth
from bppsa.fxpasses.reroll.views.columns import OpWriter

aten = torch.ops.aten
READS = Reason("reads the value of a tensor", str(aten._local_scalar_dense.default), CHOOSE)


def read_truths(log: Log) -> list[LoggedValue]:
    """Values [], one for each line, op and shape, that are true where all that was read is as it was in the log. The
    ops that make them are put at the log's end. Raises Unsupported where one line has decided in two ways, and not in
    the first step or the last alone."""
    groups: dict[tuple[Any, ...], list[ReadTruth]] = {}
    for read in log.truths:
        op = read.value.op
        made = (op.target, *(operand.shape for operand in op.operands)) if op is not None else ()
        groups.setdefault((read.lines, made), []).append(read)
    write = OpWriter()
    found = [as_read(write, alike) for reads in groups.values() for alike in decided_alike(reads)]
    log.ops += write.ops
    return found


def decided_alike(reads: Sequence[ReadTruth]) -> list[list[ReadTruth]]:
    """The groups of reads that decide as one: all, or all but one at an end, as where a state is all zeros before the
    first step."""
    runs = [list(run) for _, run in groupby(reads, lambda read: read.holds)]
    at_ends = [run for run in (runs[0], runs[-1]) if len(run) == 1]
    if len(runs) > 1 + min(len(at_ends), len(runs) - 1):
        raise Unsupported(READS.what, READS.op, READS.mend, place(reads[0].lines))
    return runs


def witness_of(read: ReadTruth) -> LoggedValue:
    """What tells as much as the truth value, and may have rows."""
    op = read.value.op
    if op is not None and op.target in (OF_ALL if read.holds else OF_ANY):
        return op.leaves[0]
    return read.value


def as_read(write: OpWriter, reads: Sequence[ReadTruth]) -> LoggedValue:
    witnesses = [witness_of(read) for read in reads]
    shape = (len(reads), *witnesses[0].shape)
    stacked = write.one(aten.stack.default, [witnesses, 0], shape, torch.bool)
    if reads[0].holds:
        return write.one(aten.all.default, [stacked], (), torch.bool)
    found = write.one(aten.any.default, [stacked], (), torch.bool)
    return write.one(aten.logical_not.default, [found], (), torch.bool)
