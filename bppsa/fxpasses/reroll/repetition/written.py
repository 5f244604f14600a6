"""A loop as its user wrote it, whose steps need not be alike: told by how often the ops of its lines have passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bppsa.fxpasses.reroll.log.lines import loops
from bppsa.fxpasses.reroll.log.ops import LoggedOp
from bppsa.fxpasses.reroll.repetition.period import LEAST_STEPS

OpKind = tuple[str, Any]  # the name of an op, and its lines
LoopHeader = tuple[CodeType, int]  # the function a loop is in, and its first line
LEAST_WAITING = 3  # steps that wait for one another, of a loop that may end and begin again
MOST = 0.75  # of the kinds of ops that a loop does


@dataclass(frozen=True)
class WrittenLoop:
    """line: "file:line" of it. steps: the ops of each, from one that all of them do up to the next of that kind."""

    line: str
    steps: list[list[LoggedOp]]


def loop_over_time(ops: Sequence[LoggedOp]) -> WrittenLoop | None:
    """The loop of at least `LEAST_STEPS` steps that has done most of the ops."""
    members: dict[LoopHeader, list[LoggedOp]] = {}
    own: dict[LoopHeader, Counter[OpKind]] = {}  # those in none of the loops within it
    for op in ops:
        around = [(code, holding(code, line)) for code, line in op.lines]
        for header in {(code, first) for code, headers in around for first in headers}:
            members.setdefault(header, []).append(op)
        innermost = next(((code, headers[0]) for code, headers in around if headers), None)
        if innermost is not None:
            own.setdefault(innermost, Counter())[kind_of(op)] += 1
    often = {
        header: Counter({kind: n for kind, n in kinds.items() if n >= LEAST_STEPS}) for header, kinds in own.items()
    }
    found = [cut(header, members[header], kinds) for header, kinds in often.items() if kinds]
    return max(found, key=lambda loop: sum(map(len, loop.steps)), default=None)


def kind_of(op: LoggedOp) -> OpKind:
    """The same for an op that changes a tensor in place, and for the one that is logged in its place."""
    return str(op.target).replace("_.", "."), op.lines


def holding(code: CodeType, line: int) -> list[int]:
    """The first lines of the loops that have the line, the innermost first."""
    sizes: dict[int, int] = {}
    for first, last in loops(code):
        if first <= line <= last:
            sizes[first] = max(last - first, sizes.get(first, 0))
    return sorted(sizes, key=lambda first: sizes[first])


def cut(header: LoopHeader, ops: Sequence[LoggedOp], kinds: Counter[OpKind]) -> WrittenLoop:
    """The loop, cut at each op of the first kind that is done once in each step."""
    often = steps_of(kinds)
    pivot = next(kind for kind, count in kinds.items() if count == often)
    steps: list[list[LoggedOp]] = []
    for op in ops:
        if kind_of(op) == pivot:
            steps.append([])
        if steps:
            steps[-1].append(op)
    code, first = header
    return WrittenLoop(f"{code.co_filename}:{first}", steps)


def steps_of(kinds: Counter[OpKind]) -> int:
    """How many steps a loop has had. Most kinds of ops are done once, or some times, in each of them; those that some
    steps leave out are few. Of the numbers that explain most kinds it is the largest, else the one that explains most.
    """
    explained = {count: sum(other % count == 0 for other in kinds.values()) for count in kinds.values()}
    likely = [count for count, many in explained.items() if many >= MOST * len(kinds)]
    return max(likely, default=max(explained, key=lambda count: (explained[count], -count)))


def is_over_time(loop: WrittenLoop) -> bool:
    """Whether steps read what others have made, and the same weights, as layers do not."""
    depth: dict[LoggedOp, tuple[int, int]] = {}  # the step of an op, and how many steps before it wait for one another
    weights: Counter[Any] = Counter()
    for k, step in enumerate(loop.steps):
        for op in step:
            made = [depth[value.op] for value in op.operands if value.op in depth]
            depth[op] = k, max((waited + (at < k) for at, waited in made), default=0)
        weights.update({value for op in step for value in op.operands if value.constant})
    carries = any(waited >= LEAST_WAITING for _, waited in depth.values())
    return carries and (not weights or max(weights.values()) >= len(loop.steps) // 2)
