"""Where in the user's code a loop is: the line of its `for`, `while` or comprehension."""

from __future__ import annotations

import dis
import linecache
import sys
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, FrameType

from bppsa.fxpasses.lines import is_users, place_at
from bppsa.fxpasses.reroll.log.ops import LoggedOp


def loop_at(step: Sequence[LoggedOp]) -> str:
    """ "file:line" of the loop that does the ops of a step; "" where no line of the user's does."""
    stacks = [op.lines[::-1] for op in step if op.lines]  # outermost first
    if not stacks:
        return ""
    shared = 0
    while all(len(stack) > shared and stack[shared][0] is stacks[0][shared][0] for stack in stacks):
        shared += 1
    for depth in reversed(range(shared)):
        code = stacks[0][depth][0]
        header = innermost(code, [stack[depth][1] for stack in stacks])
        if header:
            return f"{code.co_filename}:{header}"
    code, line = stacks[0][0]
    return f"{code.co_filename}:{line}"


def innermost(code: CodeType, lines: Sequence[int]) -> int:
    """The line of the smallest loop of a function that has all of these lines, or 0."""
    holding = [(last - first, first) for first, last in loops(code) if all(first <= line <= last for line in lines)]
    return min(holding, default=(0, 0))[1]


def goes_over(lines: Sequence[tuple[CodeType, int]]) -> bool:
    """Whether the innermost line is that of a `for`, which computes there what it goes over."""
    if not lines:
        return False
    code, line = lines[0]
    begins = line in {first for first, _ in loops(code)}
    return begins and linecache.getline(code.co_filename, line).lstrip().startswith("for ")


@lru_cache(maxsize=1024)
def loops(code: CodeType) -> tuple[tuple[int, int], ...]:
    """First and last line of each loop in a function's own code: where a jump goes back to, and where it is."""
    line, lines, found = code.co_firstlineno, {}, []
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        lines[instruction.offset] = line
        target = instruction.argval
        if "JUMP" in instruction.opname and isinstance(target, int) and target <= instruction.offset:
            within = [lines[offset] for offset in lines if offset >= target]
            found.append((min(lines.get(target, line), *within), max(within)))
    return tuple(found)


def users_lines(outermost: CodeType) -> tuple[tuple[CodeType, int], ...]:
    """(code, line) of the frames of the user's within a call from `outermost`, innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code is not outermost:
        if of_users(frame.f_code):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


@lru_cache(maxsize=1024)
def of_users(code: CodeType) -> bool:
    return is_users(code.co_filename)


def place(lines: Sequence[tuple[CodeType, int]]) -> str:
    """The innermost, as a message shows it; "" where no line of the user's is known."""
    return place_at(lines[0][0].co_filename, lines[0][1]) if lines else ""
