"""Calls with a loop that PyTorch runs, and what is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from bppsa.decisions import Decision
from bppsa.errors import Reason
from bppsa.frontend.loops.state import LeftCall
from bppsa.frontend.loops.told import named, refusals, refused
from bppsa.fxpasses.reroll.find import Repetition, short_loop
from bppsa.fxpasses.reroll.log.ops import Log
from bppsa.fxpasses.reroll.repetition.unlike import in_parts, unlike
from bppsa.fxpasses.reroll.repetition.written import WrittenLoop, is_over_time, loop_over_time


def left(path: str, log: Log, found: Sequence[Repetition], reason: Reason, around_others: bool = False) -> LeftCall:
    """Returns what is kept and told of a call that PyTorch runs. found: what repeats itself in the log. reason: what is
    told where none of that has one of its own."""
    told = refusals(found, path)
    if found:
        return LeftCall(told or (Decision(named(path, found[0]), "loop", "pytorch", str(reason)),), around_others)
    loop = loop_over_time((*log.ops, *log.rest))
    if loop is None:
        return LeftCall((Decision(path, "loop", "pytorch", str(reason)),), around_others)
    return LeftCall((refused(as_written(loop, reason), path),), around_others)


def not_repeated(path: str, log: Log, around_others: bool) -> LeftCall:
    """A call whose ops do not repeat themselves often enough. What its user wrote as a loop over time is told."""
    loop = loop_over_time((*log.ops, *log.rest))
    if log.refusal is not None:
        return left(path, log, (), log.refusal, around_others) if loop is not None else LeftCall()
    short: Repetition | None
    written = loop if loop is not None and is_over_time(loop) else None
    short = short_loop(log) if written is None else as_written(written, in_parts(written, log.ops) or unlike(written))
    return LeftCall((refused(short, path),), is_short=True) if short is not None else LeftCall()


def as_written(loop: WrittenLoop, reason: Reason) -> Repetition:
    """The loop as the report tells it, with as many steps as the user wrote."""
    return Repetition(loop.line, len(loop.steps), max(map(len, loop.steps)), reason=reason)
