"""All loops of a log become scans, one after the other, the longest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any

import torch

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.reroll.assemble import unbound
from bppsa.fxpasses.reroll.log.lines import innermost, loop_at
from bppsa.fxpasses.reroll.log.ops import Log, LoggedOp, LoggedValue, is_number
from bppsa.fxpasses.reroll.program import living
from bppsa.fxpasses.reroll.repetition.period import LEAST_STEPS, PeriodicRun, colours, longest
from bppsa.fxpasses.reroll.repetition.relate import NOTHING_CARRIED, UnrolledLoop, relate_parts
from bppsa.fxpasses.reroll.repetition.unroll import is_as_logged
from bppsa.fxpasses.reroll.rewrite import Fuse, rewritten
from bppsa.fxpasses.reroll.views.grown import of_last_pieces
from bppsa.fxpasses.reroll.views.joined import joined
from bppsa.fxpasses.reroll.views.leading import without_leading
from bppsa.fxpasses.reroll.views.reshapes import for_any_order, without_detours

aten = torch.ops.aten
ITEMS = {aten.select.int, aten.slice.Tensor, aten.unbind.int, aten.split.Tensor}
MOST_LOOPS = 16
FEWEST = 2  # repetitions that are told of
Settle = Callable[[UnrolledLoop, Sequence[LoggedOp], str], None]


@dataclass(frozen=True)
class Repetition:
    """One repetition. steps: of the user's loop, of which the scan may leave out one at an end that is not like the
    others. scan: the op that stands for it, or None; reason: why there is none."""

    line: str
    steps: int
    period: int
    scan: LoggedOp | None = None
    reason: Reason | None = None


@dataclass
class Rerolled:
    """ops: with scans in the place of loops. result: the values that the call returns."""

    ops: list[LoggedOp]
    result: list[LoggedValue]
    found: list[Repetition] = field(default_factory=list)


def reroll(log: Log, result: Sequence[LoggedValue], fuse: Fuse, settle: Settle | None = None) -> Rerolled:
    """The log's ops with each loop that can be fused as one scan. settle: may make numbers of a step ones that it is
    given."""
    ops = joined(of_last_pieces(for_any_order(log.ops)), result)
    left = Rerolled(*without_detours(without_leading(ops), result))
    if next_run(left.ops, set()) is None:
        let_steps_be_alike(log)
    closed: set[LoggedOp] = set()  # scans, and what was looked at in vain
    for _ in range(MOST_LOOPS):
        run = next_run(left.ops, closed)
        if run is None:
            break
        members = left.ops[run.start : run.stop]
        line = loop_at(members[len(members) // 2 :][: run.period])
        known = left.ops
        try:
            loop = relate_parts(left.ops, run)
            if not is_as_logged(loop, left.ops):
                raise Unsupported("its steps differ in what they read")
            if settle is not None:
                settle(loop, left.ops, line)
            ops, scan, assembler = rewritten(left.ops, loop, left.result, fuse)
        except Unsupported as unsupported:
            closed.update(members)
            if unsupported.reason is NOTHING_CARRIED:
                continue
            left.found.append(Repetition(line, len(members) // run.period, run.period, reason=unsupported.reason))
            continue
        left.result = [assembler.alone(value) for value in left.result]
        left.ops = unbound(living([*ops, *assembler.taken()], left.result), scan)
        left.found.append(Repetition(line, loop.steps + steps_beside(known, loop, line), loop.period, scan))
        closed.add(scan)
    lines = {one.line for one in left.found if one.scan is not None}  # what is left of a loop beside its scan
    left.found = [one for one in left.found if one.scan is not None or one.line not in lines]
    return left


def let_steps_be_alike(log: Log) -> None:
    """What is made of a Parameter for some steps: items, as learned positions have, or by the step's number, as learned
    decays. They tell steps apart as weights tell layers apart; here nothing repeats itself because of them."""
    alike: dict[Any, set[LoggedValue]] = {}
    for op in log.prologue:
        if op.target in ITEMS and isinstance(op.leaves[0], LoggedValue):
            alike.setdefault(op.leaves[0], set()).update(op.outs)
        elif any(map(is_number, op.leaves)):
            leaves = tuple(type(leaf) if is_number(leaf) else leaf for leaf in op.leaves)
            alike.setdefault((op.target, op.spec, op.lines, leaves), set()).update(op.outs)
    of_steps = {value for values in alike.values() if len(values) > 1 for value in values}
    for op in log.prologue:
        if not of_steps.isdisjoint(op.operands):
            of_steps.update(op.outs)
    for value in of_steps:
        value.constant = False


def steps_beside(ops: Sequence[LoggedOp], loop: UnrolledLoop, line: str) -> int:
    """How many steps of the user's loop are right before and behind what repeats itself: 0, 1 or 2. The first differs
    where a state begins as None or as a Parameter."""
    model = Counter((op.target, op.lines) for op in ops[loop.start : loop.start + loop.period])
    before, behind = reversed(ops[max(0, loop.start - loop.period) : loop.start]), ops[loop.stop :][: loop.period]
    return sum(is_of_step(takewhile(lambda op: is_in_loop(op, line), side), model) for side in (before, behind))


def is_of_step(ops: Iterable[LoggedOp], model: Mapping[Any, int]) -> bool:
    """Whether among the ops there are most of those that a step has."""
    found = Counter((op.target, op.lines) for op in ops)
    return 2 * sum((found & Counter(model)).values()) > sum(model.values())


def is_in_loop(op: LoggedOp, line: str) -> bool:
    return any(f"{code.co_filename}:{innermost(code, [at])}" == line for code, at in op.lines)


def is_repeated(log: Log) -> bool:
    """Whether the ops that passed repeat themselves often enough to be a loop over time."""
    targets: dict[Any, int] = {}
    seen = [targets.setdefault(target, len(targets)) for target in (op.target for op in (*log.ops, *log.rest))]
    return longest(seen) is not None


def short_loop(log: Log) -> Repetition | None:
    """A loop of the user's of too few steps: ops of the same lines that repeat, and read what the step before made."""
    if log.refusal is not None:
        return None
    known: dict[Any, int] = {}
    lines = [
        known.setdefault((colour, op.lines), len(known)) for colour, op in zip(colours(log.ops), log.ops, strict=True)
    ]
    run = longest(lines, FEWEST)
    if run is None:
        return None
    members = log.ops[run.start : run.stop]
    step = members[: run.period]
    file, _, line = loop_at(step).rpartition(":")
    in_loop = any(innermost(code, [at]) == int(line or 0) and code.co_filename == file for code, at in step[0].lines)
    places = {op: i // run.period for i, op in enumerate(members)}
    carried = any(places.get(v.op, i) < i for op, i in places.items() for v in op.operands if v.op is not None)
    steps = len(members) // run.period
    reason = Reason(f"repeats {steps} times; a loop of fewer than {LEAST_STEPS} steps gains nothing by a scan")
    return Repetition(f"{file}:{line}", steps, run.period, reason=reason) if in_loop and carried else None


def next_run(ops: Sequence[LoggedOp], closed: set[LoggedOp]) -> PeriodicRun | None:
    """The longest repetition between ops that are closed."""
    found = []
    for start, stop in runs_between(ops, closed):
        run = longest(colours(ops[start:stop]))
        if run is not None:
            found.append(PeriodicRun(run.start + start, run.stop + start, run.period))
    return max(found, key=lambda run: run.stop - run.start, default=None)


def runs_between(ops: Sequence[LoggedOp], closed: set[LoggedOp]) -> Iterator[tuple[int, int]]:
    """Where ops that are not closed follow one another."""
    for is_closed, run in groupby(range(len(ops)), lambda i: ops[i] in closed):
        if not is_closed:
            members = list(run)
            yield members[0], members[-1] + 1
