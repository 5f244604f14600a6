"""An element of each row in a log: its op takes no numbers of rows, as any op does that treats rows alike."""

from __future__ import annotations

from typing import Any

from bppsa.fxpasses.recording.row_elements import HANDED_ON, OF_ROWS, may_be_of_rows, numbers_rows
from bppsa.fxpasses.reroll.log.ops import LoggedValue, Nesting

Written = tuple[Any, list[Any], Nesting]  # an op, its leaves, and how they are nested


def without_rows(func: Any, leaves: list[Any], spec: Nesting) -> Written:
    """The op of ours in the place of an index by all rows and one list more; any other op as it is."""
    if func not in OF_ROWS or spec[0][1] != (None, None) or not is_of_rows(*leaves[:3]):
        return func, leaves, spec
    x, _, at, *more = leaves
    more = [*more, False][:2] if more else []
    return OF_ROWS[func], [x, at, *more], ((None,) * (2 + len(more)), ())


def is_of_rows(x: LoggedValue, rows: Any, at: Any) -> bool:
    if not (isinstance(rows, LoggedValue) and isinstance(at, LoggedValue) and may_be_of_rows(x, (rows, at))):
        return False
    op = rows.op
    while op is not None and op.target in HANDED_ON:
        op = op.leaves[0].op
    return op is not None and numbers_rows(op.target, op.leaves, x.shape[0])
