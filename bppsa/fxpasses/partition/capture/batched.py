"""Which tensors among a model's arguments have the batch's rows: the symbols of their sizes tell.

The first tensor has them. Another of as many may have them by chance, such as a mask [T, T].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import sympy

SymbolicShape = tuple[Any, ...]
Symbols = frozenset[sympy.Symbol]
MOST = 8  # symbols of which all choices are tried


def batched(
    shapes: Sequence[SymbolicShape | None],
    sizes: Sequence[Sequence[int] | None],
    guards: Sequence[sympy.Basic],
    outputs: Sequence[SymbolicShape],
) -> tuple[bool | None, ...]:
    """Tells of each leaf whether it has rows. True is certain: the forward takes no other. False is likely: the size is
    that of other dimensions, or an output has it beside its rows. None where symbols do not tell.

    shapes: in numbers and symbols; sizes: of the example; guards: of what the forward decided; outputs: the shapes of
    what the model returns.
    """
    leaves = list(zip(shapes, sizes, strict=True))
    first = next(((shape, size) for shape, size in leaves if shape and size), None)
    if first is None:
        return (False,) * len(shapes)
    (rows, *_), (count, *_) = first
    same = [bool(shape and size and size[0] == count) for shape, size in leaves]
    others = {shape[0] for shape, yes in zip(shapes, same, strict=True) if shape and yes} - {rows}
    moved = along(rows, frozenset(n for n in others if isinstance(n, sympy.Symbol)), symbols_of(shapes, sizes), guards)
    elsewhere = {n for shape in shapes for n in (shape or ())[1:]}
    elsewhere |= {symbol for shape in outputs for n in shape[1:] for symbol in getattr(n, "free_symbols", ())}
    found: list[bool | None] = []
    for shape, yes in zip(shapes, same, strict=True):
        if not shape or not yes:
            found.append(False)
        elif shape[0] == rows or isinstance(rows, int) or shape[0] in moved:
            found.append(True)
        else:
            found.append(False if shape[0] in elsewhere else None)
    return tuple(found)


def along(rows: Any, others: Symbols, known: dict[sympy.Symbol, int], guards: Sequence[sympy.Basic]) -> Symbols:
    """The symbols, of the others, without which the number of rows cannot change, by what the forward decided."""
    if not isinstance(rows, sympy.Symbol) or len(others) > MOST:
        return frozenset()
    decided = [guard for guard in guards if guard.free_symbols <= known.keys() and guard.free_symbols & {rows, *others}]
    held = [
        chosen
        for chosen in choices(others)
        for size in (known[rows] // 2, known[rows] + 2, 2 * known[rows])
        if all(holds(guard, {**known, rows: size, **dict.fromkeys(chosen, size)}) for guard in decided)
    ]
    return frozenset.intersection(*held) if held else frozenset()


def choices(symbols: Symbols) -> Iterator[Symbols]:
    return (frozenset(some) for count in range(len(symbols) + 1) for some in combinations(symbols, count))


def holds(guard: sympy.Basic, known: dict[sympy.Symbol, int]) -> bool:
    return bool(guard.xreplace({symbol: sympy.Integer(n) for symbol, n in known.items()}))


def symbols_of(
    shapes: Sequence[SymbolicShape | None], sizes: Sequence[Sequence[int] | None]
) -> dict[sympy.Symbol, int]:
    pairs = (
        (a, n) for shape, of in zip(shapes, sizes, strict=True) for a, n in zip(shape or (), of or (), strict=True)
    )
    return {symbol: size for symbol, size in pairs if isinstance(symbol, sympy.Symbol)}
