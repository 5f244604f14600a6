"""A stage's forward run again before its backward: what that takes of time, and what it spares of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bppsa.errors import ScheduleError

if TYPE_CHECKING:
    from bppsa.schedule.simulator import Cost

FULL = "full"


@dataclass(frozen=True)
class Recompute:
    """What a schedule recomputes: between the forward and the backward of a stage only `kept` is held, and the backward
    begins with the forward, or a part of it.

    Each is a number, a list with a number for each stage, or a function of (s, b), as the costs of `simulate` are.

    Attributes:
        name: what it is called in tables.
        again: the share of the forward's time that is run again: 1 is all of it, and 0 in a stage that recomputes
            nothing.
        kept: what one micro-batch's stage holds between the two, in the unit of `activation_sizes`, such as its input.
            From the start of its backward on it holds all of its activations.
    """

    name: str = FULL
    again: Cost = 1
    kept: Cost = 0


def recompute_of(asked: Any) -> Recompute | None:
    """The record of what was asked for: one, True or "full", or None or False for none.

    Raises ScheduleError for anything else.
    """
    if asked is None or asked is False:
        return None
    if asked is True or asked == FULL:
        return Recompute()
    if not isinstance(asked, Recompute):
        raise ScheduleError(
            f'recompute={asked!r} is none of True, "full", False and Recompute(again=..., kept=...); give one of them'
        )
    return asked
