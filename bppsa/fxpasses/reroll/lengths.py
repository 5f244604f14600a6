"""Numbers of a step that go with the number of steps, as `1 / T`: they are given to the step, not a part of it.

Within one log such a number is the same in all steps. Where a loop of another length has had another one there, and
both are the same multiple of T or of 1 / T, or as far from T, it becomes a number for each step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bppsa.common.recent import RecentMap
from bppsa.fxpasses.environment.key import exact
from bppsa.fxpasses.reroll.levels import Level, levels
from bppsa.fxpasses.reroll.log.ops import LoggedOp, is_number
from bppsa.fxpasses.reroll.reader import OF_NUMBERS, OPERANDS
from bppsa.fxpasses.reroll.repetition.relate import Made, Outside, Plain, Relation, UnrolledLoop, VaryingNumber

MOST = 16  # loops that are remembered
OFF_BY = (0, -1, 1)  # 1 / (T - 1) and 1 / (T + 1) go with T as well
EXACT = 1e-12  # of a number: rounding of float64

OperandPlace = tuple[int, int]  # of an op in the step, and of its leaf


def goes_with(one: Any, other: Any, steps: int, others: int) -> bool:
    """Whether a number, or one for each step, differs from another as their numbers of steps differ."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return lists_go_with(one, other, steps, others)
    if isinstance(one, tuple) or isinstance(other, tuple) or type(one) is not type(other):
        return False
    if one - other == steps - others:
        return True
    inverse = (is_near(one * (steps + by), other * (others + by)) for by in OFF_BY)
    return is_near(one * others, other * steps) or (isinstance(one, float) and any(inverse))


def lists_go_with(one: tuple[Any, ...], other: tuple[Any, ...], steps: int, others: int) -> bool:
    if len(one) - len(other) not in (0, steps - others):
        return False
    for first, second in ((one, other), (one[::-1], other[::-1])):  # t and T - t
        pairs = list(zip(first, second, strict=False))
        if all(exact(a) == exact(b) for a, b in pairs):
            return True
        if all(is_near(a * steps, b * others) for a, b in pairs):  # over T
            return True
    return len(one) == len(other) and all(
        exact(a) == exact(b) or goes_with(a, b, steps, others) for a, b in zip(one, other, strict=True)
    )


def is_near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=EXACT)


@dataclass
class KnownLoop:
    """steps, and the numbers of a step by their places; given: those that go with the number of steps."""

    steps: int
    numbers: dict[OperandPlace, Any]
    given: set[OperandPlace] = field(default_factory=set)


@dataclass(eq=False)
class StepNumbers:
    """loops: by all of a step but its numbers, and the line it is in."""

    loops: RecentMap[KnownLoop] = field(default_factory=lambda: RecentMap(MOST))

    def __call__(self, loop: UnrolledLoop, ops: Sequence[LoggedOp], line: str) -> None:
        """Numbers of the loop that go with the number of its steps become numbers for each step."""
        model = ops[loop.start : loop.start + loop.period]
        numbers = dict(candidates(loop, model))
        if not numbers:
            return
        key = line, *(step_key(op, relations) for op, relations in zip(model, loop.relations, strict=True))
        known = self.loops.find(key, lambda: KnownLoop(loop.steps, numbers))
        for place, value in numbers.items():
            then = known.numbers.get(place, value)
            if loop.steps != known.steps and exact(then) != exact(value):
                if not goes_with(value, then, loop.steps, known.steps):
                    continue
                known.given.add(place)
            if place in known.given and loop.steps != known.steps:
                op, slot = place
                loop.relations[op][slot] = VaryingNumber((value,) * loop.steps)


def candidates(loop: UnrolledLoop, model: Sequence[LoggedOp]) -> list[tuple[OperandPlace, Any]]:
    """Numbers that a kernel may be given, of ops that are not the same in all steps."""
    level = levels(loop, model)
    return [
        ((j, slot), relation.value)
        for j, relations in enumerate(loop.relations)
        if level[j] is not Level.SAME and model[j].target in OF_NUMBERS
        for slot, relation in enumerate(relations[:OPERANDS])
        if isinstance(relation, Plain) and is_number(relation.value)
    ]


def step_key(op: LoggedOp, relations: Sequence[Relation]) -> Hashable:
    outs = tuple((tuple(value.shape), value.dtype) for value in op.outs)
    return op.target, op.spec, op.grad, outs, tuple(map(relation_key, relations))


def relation_key(relation: Relation) -> Hashable:
    if isinstance(relation, Made):
        return relation
    if isinstance(relation, Outside):
        return len(relation.values[0].shape), relation.values[0].dtype, relation.is_same  # one of its sizes may be T
    if isinstance(relation, VaryingNumber) or is_number(relation.value):
        return "number"
    return exact(relation.value)
