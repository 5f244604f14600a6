"""What threads hold of a row in variables, and what every step fetches from memory."""

from __future__ import annotations

from dataclasses import dataclass

from bppsa.codegen.language.ir import FOLDS, Buffer, Kernel

PieceNames = tuple[
    str, ...
]  # of a value: a variable for each piece of a thread's columns; one where all threads have it


@dataclass(frozen=True)
class Fetch:
    """What every step reads of memory and none has written: `width` columns, or one that all threads read."""

    buffer: Buffer
    after: bool
    column: int
    width: int


@dataclass(frozen=True)
class Held:
    """Columns of a row that threads hold in variables, as the group that stored them owns them."""

    column: int
    width: int
    names: PieceNames


def stored_columns(kernel: Kernel) -> dict[str, set[tuple[int, int]]]:
    found: dict[str, set[tuple[int, int]]] = {}
    for group in kernel.groups:
        for store in group.stores:
            width = 1 if store.reduce in FOLDS else group.width
            found.setdefault(store.target.buffer, set()).add((store.target.column, store.target.column + width))
    return found


def overlap(held: Held, column: int, width: int) -> bool:
    return held.column < column + width and column < held.column + held.width


def latest(held: list[Held]) -> list[Held]:
    """What is held, without what was stored over, as a whole or in part."""
    return [h for i, h in enumerate(held) if not any(overlap(h, o.column, o.width) for o in held[i + 1 :])]
