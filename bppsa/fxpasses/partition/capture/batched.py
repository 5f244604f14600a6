"""Which tensors among a model's arguments have the batch's rows: the symbols of their sizes tell.

The first tensor has them. Another of as many may have them by chance, such as a mask [T, T].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

Shape = tuple[Any, ...]


def batched(
    shapes: Sequence[Shape | None],
    sizes: Sequence[Sequence[int] | None],
    guards: Sequence[sympy.Basic],
    outputs: Sequence[Shape],
) -> tuple[bool | None, ...]:
    """Of each leaf; None where symbols do not tell.

    shapes: in numbers and symbols; sizes: of the example; guards: of what the forward decided; outputs: the shapes of
    what the model returns.
    """
    leaves = list(zip(shapes, sizes, strict=True))
    first = next(((shape, size) for shape, size in leaves if shape and size), None)
    if first is None:
        return (False,) * len(shapes)
    (rows, *_), (count, *_) = first
    known = symbols_of(shapes, sizes)
    found: list[bool | None] = []
    for shape, size in leaves:
        if not shape or not size or size[0] != count:
            found.append(False)
        else:
            found.append(shape is first[0] or has_rows(shape[0], rows, shapes, known, guards, outputs))
    return tuple(found)


def has_rows(
    size: Any,
    rows: Any,
    shapes: Sequence[Shape | None],
    known: dict[sympy.Symbol, int],
    guards: Sequence[sympy.Basic],
    outputs: Sequence[Shape],
) -> bool | None:
    """size: of dimension 0 of a tensor that has as many in the example."""
    if size == rows or not isinstance(size, sympy.Symbol) or not isinstance(rows, sympy.Symbol):
        return True
    if any(size in shape[1:] for shape in shapes if shape):
        return False  # it is that of another dimension as well, such as of steps
    other = {**known, rows: known[rows] + 2}
    if any(not holds(guard, other) for guard in guards):
        return not any(not holds(guard, {**other, size: other[rows]}) for guard in guards)
    places = [axis for shape in outputs for axis, n in enumerate(shape) if size in getattr(n, "free_symbols", ())]
    return not any(places) if places else None


def holds(guard: sympy.Basic, known: dict[sympy.Symbol, int]) -> bool:
    return bool(guard.xreplace({symbol: sympy.Integer(n) for symbol, n in known.items()}))


def symbols_of(shapes: Sequence[Shape | None], sizes: Sequence[Sequence[int] | None]) -> dict[sympy.Symbol, int]:
    pairs = (
        (a, n) for shape, of in zip(shapes, sizes, strict=True) for a, n in zip(shape or (), of or (), strict=True)
    )
    return {symbol: size for symbol, size in pairs if isinstance(symbol, sympy.Symbol)}
