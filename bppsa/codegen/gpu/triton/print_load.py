"""Print what a Triton kernel reads from memory: constants, vectors and weights once, the rows of streams a step ahead.

Which columns a tile needs is `print_tile`'s matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bppsa.codegen.gpu.triton.columns import Block, Piece, Tile, padded
from bppsa.codegen.language.ir import Kernel, Kind


@dataclass(frozen=True)
class TritonVariable:
    """A variable of shape [rows or 1, columns or 1]; it broadcasts."""

    name: str
    shape: tuple[int, int]


def span(columns: str, low: int, high: int, size: int) -> list[str]:
    """The conditions that `columns`, counted from 0 to `size`, lie in [low, high)."""
    return [*([f"({columns} >= {low})"] if low > 0 else []), *([f"({columns} < {high})"] if high < size else [])]


def mask(conditions: Sequence[str], other: str = ", other=0.0") -> str:
    """What a load, or with other="" a store, is told of its columns."""
    return f", mask={' & '.join(conditions)}{other}" if conditions else ""


class Loads:
    """block: the rows of a program. hold: keep weights during the loop, else read each where it is used. early: see
    `loop`."""

    def __init__(self, kernel: Kernel, block: Block, hold: bool, early: bool) -> None:
        self.block, self.hold, self.early = block, hold, early
        self.head: list[str] = []
        self.fetched: dict[str, str] = {}  # variable -> the buffer whose columns it holds in every step
        self.columns_fetched = 0
        self.held = 0  # elements of the weights' tiles
        self._known: dict[object, str] = {}
        self._again: dict[str, str] = {}
        self._indices: set[str] = set()
        self._kinds = kernel.kinds

    def columns(self, size: int) -> str:
        """[1, size]: 0, 1, ..."""
        return self._index(f"c{size}", f"tl.arange(0, {size})[None, :]")

    def depths(self, size: int) -> str:
        """[size, 1]"""
        return self._index(f"d{size}", f"tl.arange(0, {size})[:, None]")

    def _index(self, name: str, text: str) -> str:
        if name not in self._indices:
            self._indices.add(name)
            self.head.append(f"{name} = {text}")
        return name

    def constant(self, value: float) -> TritonVariable:
        text = repr(value) if math.isfinite(value) else f'float("{value}")'
        return TritonVariable(self._once(text, "k", f"tl.full([1, 1], {text}, REAL)"), (1, 1))

    def vector(self, buffer: str, column: int, width: int) -> TritonVariable:
        size = padded(width)
        c = self.columns(size)
        text = f"tl.load({buffer}_at + {column} + {c}{mask(span(c, 0, width, size))})"
        return TritonVariable(self._once((buffer, column, width), "u", text), (1, size))

    def _once(self, key: object, prefix: str, text: str) -> str:
        if key not in self._known:
            self._known[key] = f"{prefix}{len(self._known)}"
            self.head.append(f"{self._known[key]} = {text}")
        return self._known[key]

    def fetch(self, buffer: str, after: bool, column: int, width: int) -> Tile:
        """These columns of the step's row. They are read before the step begins: memory answers while the one before it
        computes."""
        key = (buffer, after, column, width)
        if key not in self._known:
            name = self._known[key] = f"x{len(self._known)}"
            self.fetched[name] = buffer
            self.columns_fetched += padded(width)
            self.head.append(f"{name} = {self.row(*key, 'first', '(first < length)')}")
            self._again[name] = self.row(*key, "ahead", "coming")
        return Tile(self._known[key], width, self.block.samples)

    def loop(self, lines: Sequence[str]) -> list[str]:
        """The step's `lines` with the loads for the next step: `early`, before all of it, else each after the last
        use of what it replaces, which needs no registers for both."""
        found = list(lines)
        if self.early:
            renamed = [f"{name}_next = {text}" for name, text in self._again.items()]
            return [*renamed, *found, *(f"{name} = {name}_next" for name in self._again)]
        for name, text in self._again.items():
            last = max(i for i, line in enumerate(found) if re.search(rf"\b{name}\b", line))
            found.insert(last + 1, f"{name} = {text}")
        return found

    def row(self, buffer: str, after: bool, column: int, width: int, time: str, condition: str) -> str:
        size = padded(width)
        c = self.columns(size)
        return (
            f"tl.load({self.place(buffer, after, time)} + {column} + {c}{mask([condition, *span(c, 0, width, size)])})"
        )

    def place(self, buffer: str, after: bool, time: str) -> str:
        """[samples, 1]: the rows of step `time`. Offsets can pass 2^31."""
        side = {False: " + reverse", True: " + 1 - reverse"}[after] if self._kinds[buffer] is Kind.STATE else ""
        return f"{buffer}_rows + ({time}{side}).to(tl.int64) * {buffer}_t"

    def weight(self, buffer: str, shift: int, piece: Piece, column: int, width: int) -> tuple[str, str]:
        """The rows of a weight that meet a piece of a product's source, row k + `shift` the tile's column k, and where
        to load them. As [K, N]; as [1, N] where the piece is one column wide, as [1, K] where N is 1."""
        low, high = piece.columns
        size, out = padded(piece.tile.width), padded(width)
        if size == 1:
            c = self.columns(out)
            k, n, conditions = f"{shift}", f"({column} + {c})", span(c, 0, width, out)
        elif out == 1:
            c = self.columns(size)
            k, n, conditions = f"({shift} + {c})", f"{column}", span(c, low, high, size)
        else:
            d, c = self.depths(size), self.columns(out)
            k, n = f"({shift} + {d})", f"({column} + {c})"
            conditions = [*span(d, low, high, size), *span(c, 0, width, out)]
        text = f"tl.load({buffer}_at + {k} * {buffer}_k + {n} * {buffer}_n{mask(conditions)})"
        if not self.hold:
            return "", text
        key = (buffer, shift, low, high, size, column, width)
        self.held += 0 if key in self._known else size * out
        return self._once(key, "w", text), ""

    def zeros(self, width: int) -> str:
        return f"tl.zeros([{self.block.rows}, {padded(width)}], REAL)"
