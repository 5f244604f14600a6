"""The columns of a buffer during one step on a GPU, as pieces of register tiles.

A tile holds some columns of all rows of a program. What a group stores is a tile; what a later group loads is found
here again, so that values go from group to group in registers, where no thread waits for another's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

ROWS = 16  # of a tile: the least that tensor cores multiply
MOST = 64  # columns of a tile: wider values are several tiles, and a product of them many small ones
LEAST = 16  # the shortest inner dimension of `tl.dot` in all its versions


@dataclass(frozen=True)
class Block:
    """The rows of a program. shared: they are columns of one sample, whose streams are read, and what follows from them
    is computed, for all rows once, as tiles of one row."""

    rows: int
    shared: bool

    @property
    def samples(self) -> int:
        return 1 if self.shared else self.rows

    def programs(self, rows: int, columns: int) -> int:
        """How many programs a chunk of so many samples takes, of so many columns each."""
        return rows * -(-columns // self.rows) if self.shared else -(-rows * columns // self.rows)


def padded(width: int) -> int:
    """Columns of a tile that holds `width`: Triton's shapes are powers of two."""
    return 1 if width == 1 else max(LEAST, 1 << (width - 1).bit_length())


def blocks(width: int) -> list[tuple[int, int]]:
    """(first column, columns) of the tiles that `width` columns make."""
    return [(start, min(MOST, width - start)) for start in range(0, width, MOST)]


@dataclass(frozen=True)
class Tile:
    """A variable of shape [rows, padded(width)]; what stands beyond its width is undefined. rows: all, or 1."""

    name: str
    width: int
    rows: int


@dataclass(frozen=True)
class Piece:
    """Columns [start, stop) of a buffer: those of `tile` from `offset` on."""

    start: int
    stop: int
    tile: Tile
    offset: int = 0

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.stop - self.start == self.tile.width

    @property
    def columns(self) -> tuple[int, int]:
        """[low, high) of the tile."""
        return self.offset, self.offset + self.stop - self.start

    def cut(self, start: int, stop: int) -> Piece:
        """The part within [start, stop)."""
        low, high = max(start, self.start), min(stop, self.stop)
        return replace(self, start=low, stop=high, offset=self.offset + low - self.start)


class Columns:
    """What of a buffer's row is in registers; a later write hides an earlier one."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def write(self, start: int, tile: Tile) -> None:
        stop = start + tile.width
        kept = [p.cut(0, start) for p in self.pieces if p.start < start]
        kept += [p.cut(stop, p.stop) for p in self.pieces if p.stop > stop]
        self.pieces = sorted([*kept, Piece(start, stop, tile)], key=lambda p: p.start)

    def cover(self, start: int, stop: int, missing: Callable[[int, int], Tile]) -> Iterator[Piece]:
        """[start, stop) from left to right; `missing(column, width)` gives the tile of columns that no piece holds."""
        for piece in [p for p in self.pieces if p.start < stop and p.stop > start]:
            yield from _gap(start, piece.start, missing)
            yield piece.cut(start, stop)
            start = piece.stop
        yield from _gap(start, stop, missing)


def _gap(start: int, stop: int, missing: Callable[[int, int], Tile]) -> Iterator[Piece]:
    for at, width in blocks(stop - start):
        yield Piece(start + at, start + at + width, missing(start + at, width))
