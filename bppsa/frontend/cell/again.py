"""Cells that are read again in many calls in a row, because something that their code reads has changed."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bppsa.common.recent import RecentMap
from bppsa.decisions import Decision
from bppsa.fxpasses.environment.libraries import owner
from bppsa.fxpasses.environment.walk import Environment

TOLD_FROM = 3  # calls in a row
GAIN = ("predicted ms", "PyTorch's")  # numbers that would promise one


@dataclass(frozen=True)
class CellReading:
    """The last reading of a cell. times: calls in a row, up to this one, that had to read it again; what: has changed
    since the one before."""

    parts: Sequence[Any]
    times: int = 0
    what: str = ""

    def told(self, decision: Decision) -> Decision:
        """The decision, which promises no gain where each call reads the cell."""
        if self.times < TOLD_FROM or decision.strategy == "pytorch":
            return decision
        reason = f"read again in each of the last {self.times} calls, because {self.what} changed: keep it in a tensor"
        numbers = {name: value for name, value in decision.numbers.items() if name not in GAIN}
        return replace(decision, reason=reason, numbers=numbers)


_readings: RecentMap[CellReading] = RecentMap(64)  # by `name_in_calls`


def reading_of(cell: Any, environment: Environment, made: bool) -> CellReading:
    """made: whether this call has read the cell."""
    name, parts = name_in_calls(cell), environment.key.parts
    before = _readings.get(name)
    if not made:
        if before is not None and before.times:
            _readings.keep(name, replace(before, times=0))
        return CellReading(parts)
    what = changed(before.parts, environment) if before is not None else ""
    reading = CellReading(parts, before.times + 1 if before is not None and what else 0, what)
    _readings.keep(name, reading)
    return reading


def name_in_calls(cell: Any) -> Hashable:
    """What two calls with the same cell have in common: its object, and of a function, which may be made anew in each
    call, its code."""
    while isinstance(cell, functools.partial):
        cell = cell.func
    if isinstance(cell, types.FunctionType):
        return cell.__code__
    return id(owner(cell)), getattr(cell, "__func__", None)


def changed(before: Sequence[Any], environment: Environment) -> str:
    """What the first part is of that is another one; "" where all are the same."""
    now = environment.key.parts
    first = next((i for i, (one, two) in enumerate(zip(before, now, strict=False)) if one != two), None)
    if first is None:
        first = min(len(before), len(now))
        if first == max(len(before), len(now)):
            return ""
    names = [name for at, name in environment.marks if at <= first]
    return names[-1] if names else "the cell"
