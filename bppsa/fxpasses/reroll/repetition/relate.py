"""How the operands of one step of a repetition relate to its other steps, and to what is outside of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bppsa.errors import Reason, Unsupported
from bppsa.fxpasses.reroll.log.ops import LoggedOp, LoggedValue, is_number
from bppsa.fxpasses.reroll.repetition.period import LEAST_STEPS, PeriodicRun

MOST_LEFT = 4  # steps at the start that are left outside, so that what all others carry begins alike
MOST_ALIKE = 4  # parts of one step that may do the same ops, as the stages of a Runge-Kutta method do
NOTHING_CARRIED = Reason("no step reads what another has made")


class TwoStarts(Unsupported):
    """One value is carried under two names, which differ before the first step."""


@dataclass(frozen=True)
class Made:
    """Output `item` of op `op` of the step `before` steps ago."""

    op: int
    item: int
    before: int = 0


@dataclass(frozen=True)
class Outside:
    """A value from outside the loop; `values`: one for each step."""

    values: tuple[LoggedValue, ...]

    @property
    def is_same(self) -> bool:
        return all(value is self.values[0] for value in self.values)


@dataclass(frozen=True)
class VaryingNumber:
    """A number that differs from step to step."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Plain:
    """What is the same in all steps and no tensor."""

    value: Any


Relation = Made | Outside | VaryingNumber | Plain


@dataclass
class UnrolledLoop:
    """ops[start : start + period * steps]. relations: by op of a step and by leaf of that. starts: what a value that
    was made some steps ago is in the first step."""

    start: int
    period: int
    steps: int
    relations: list[list[Relation]]
    starts: dict[Made, LoggedValue] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + self.period * self.steps


def relate(ops: Sequence[LoggedOp], run: PeriodicRun) -> UnrolledLoop:
    """The loop in a run, cut where fewest values cross and at whole steps; steps that differ at its ends stay outside.

    Raises `Unsupported` where the operands of too few steps agree, and where nothing is carried.
    """
    for i, op in enumerate(ops):
        op.at = i
    start = phase(ops, run)
    steps = (run.stop - start) // run.period
    tags = tags_of(ops, start, run.period, steps)
    first, last = agreeing(tags, steps)
    if last - first < LEAST_STEPS:
        raise Unsupported(f"its operands repeat in {last - first} of {steps} steps: too few to gain by a scan")
    most = min(MOST_LEFT, last - first - LEAST_STEPS)
    for left in range(most):
        with suppress(TwoStarts):
            return loop_of(ops, start + (first + left) * run.period, run.period, last - first - left)
    return loop_of(ops, start + (first + most) * run.period, run.period, last - first - most)


def loop_of(ops: Sequence[LoggedOp], start: int, period: int, steps: int) -> UnrolledLoop:
    """Raises `TwoStarts` where steps carry a value on by two ways that begin otherwise, as a state that is also what
    the step before gave, and zeros at first: behind its first step there is one."""
    loop = UnrolledLoop(start, period, steps, [])
    tags = tags_of(ops, loop.start, loop.period, loop.steps)
    for rows in tags:
        loop.relations.append([relation_of(row, loop) for row in rows])
    if not loop.starts:
        raise Unsupported(NOTHING_CARRIED)
    return loop


def relate_parts(ops: Sequence[LoggedOp], run: PeriodicRun) -> UnrolledLoop:
    """The loop in a run, whose steps may be of some periods each: parts of a step that do the same ops tell themselves
    apart by what they read. Raises `Unsupported` as `relate` does."""
    try:
        return relate(ops, run)
    except Unsupported:
        for times in range(2, MOST_ALIKE + 1):
            longer = run._replace(period=times * run.period)
            if run.stop - run.start >= LEAST_STEPS * longer.period:
                with suppress(Unsupported):
                    return relate(ops, longer)
        raise


def phase(ops: Sequence[LoggedOp], run: PeriodicRun) -> int:
    """Where a step begins: most whole steps, then fewest values that cross, then the earliest."""
    middle = run.start + (run.stop - run.start) // run.period // 2 * run.period
    reach: dict[int, int] = {}  # of an op of the run: the last one that reads it, around the middle
    for i in range(max(run.start, middle - run.period), min(middle + 2 * run.period, run.stop)):
        for value in ops[i].operands:
            if value.op is not None and run.start <= value.op.at < i:
                reach[value.op.at] = i

    def cost(shift: int) -> tuple[int, int, int]:
        crossing = sum(1 for made, read in reach.items() if made < middle + shift <= read)
        return -((run.stop - run.start - shift) // run.period), crossing, shift

    return run.start + min(range(run.period), key=cost)


Tag = Any  # Made within the run, a LoggedValue from outside, a number, or None for what colours have compared


def tags_of(ops: Sequence[LoggedOp], start: int, period: int, steps: int) -> list[list[list[Tag]]]:
    """The tags by op of a step, leaf and step."""
    return [
        [
            [tag(ops[start + k * period + j].leaves[slot], start, period, k) for k in range(steps)]
            for slot in range(len(ops[start + j].leaves))
        ]
        for j in range(period)
    ]


def tag(leaf: Any, start: int, period: int, step: int) -> Tag:
    if not isinstance(leaf, LoggedValue):
        return leaf
    if leaf.op is None or leaf.op.at < start:
        return leaf
    before, op = divmod(leaf.op.at - start, period)
    return Made(op, leaf.item, step - before)


def rows_of(tags: list[list[list[Tag]]]) -> Iterator[list[Tag]]:
    return (row for rows in tags for row in rows)


def agreeing(tags: list[list[list[Tag]]], steps: int) -> tuple[int, int]:
    """The steps around the middle one that are like it; in the first of them, what others carry is from outside."""
    middle = steps // 2
    alike = [True] * steps
    depth = 1
    for row in rows_of(tags):
        if isinstance(row[middle], Made):
            depth = max(depth, row[middle].before)
        if isinstance(row[middle], (Made, LoggedValue)):
            for k, each in enumerate(row):
                alike[k] &= is_like(each, row[middle])
    first = last = middle
    while first > 0 and alike[first - 1]:
        first -= 1
    while last < steps and alike[last]:
        last += 1
    for _ in range(depth):
        if first > 0 and all(may_begin(row[first - 1], row[middle]) for row in rows_of(tags)):
            first -= 1
    return first, last


def is_like(one: Tag, other: Tag) -> bool:
    return one == other if isinstance(other, Made) else isinstance(one, LoggedValue)


def may_begin(one: Tag, other: Tag) -> bool:
    if isinstance(other, Made) and other.before:
        return one == other or isinstance(one, LoggedValue)
    return is_like(one, other) if isinstance(other, (Made, LoggedValue)) else True


def relation_of(row: list[Tag], loop: UnrolledLoop) -> Relation:
    last = row[-1]
    if isinstance(last, LoggedValue):
        return Outside(tuple(row))
    if isinstance(last, Made):
        for k, value in enumerate(row[: last.before]):
            begin(loop, Made(last.op, last.item, last.before - k), value)
        return last
    if is_number(last) and any(type(each) is not type(last) or each != last for each in row):
        return VaryingNumber(tuple(row))
    return Plain(last)


def begin(loop: UnrolledLoop, made: Made, value: Tag) -> None:
    if not isinstance(value, LoggedValue):
        raise Unsupported("what is carried begins within the loop")
    if loop.starts.setdefault(made, value) is not value:
        raise TwoStarts("one value is carried from two different starts")
