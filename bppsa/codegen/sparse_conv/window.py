"""Which taps of a convolution meet which pixels: the geometry that the sweeps are specialised for.

A sweep computes the pixels of one image from those of another, `target[y, x] = sum over taps of value * source[...]`.
Forward, a target pixel reads source pixels `stride` apart. Backward, with a stride, the pixels of the input's gradient
fall into `stride^2` phases, and each phase reads the output's gradient pixel by pixel through taps of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product

IntPair = tuple[int, int]  # (vertical, horizontal)


@dataclass(frozen=True)
class Tap:
    """Element (row, column) of the kernel, and the source pixel it reads for a phase's first target pixel."""

    row: int
    column: int
    y: int
    x: int


@dataclass(frozen=True)
class StridePhase:
    """Target pixels `start + every * (a, b)` for (a, b) below `count`, and the taps that they read."""

    start: IntPair
    every: IntPair
    count: IntPair
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class Rect:
    """Pixels of a tile: rows y0 to y1 and columns x0 to x1."""

    y0: int
    y1: int
    x0: int
    x1: int

    def __bool__(self) -> bool:
        return self.y0 < self.y1 and self.x0 < self.x1


@dataclass(frozen=True)
class TapSpan:
    """Taps `first` to `last` (of the sweep's order) reach the same part of a tile."""

    first: int
    last: int
    rect: Rect


@dataclass(frozen=True)
class PixelTile:
    """Target pixels that a thread keeps in registers: `size` of them from `at`, in units of their phase."""

    phase: StridePhase
    at: IntPair
    size: IntPair
    spans: tuple[TapSpan, ...]

    @property
    def kind(self) -> tuple[IntPair, tuple[TapSpan, ...]]:
        """Tiles of one kind share their code."""
        return self.size, self.spans


@dataclass(frozen=True)
class ConvSweep:
    """source: its image's size; step: source pixels between neighbours of a phase. pool: of squares of so many target
    pixels in both directions only the largest is written."""

    source: IntPair
    target: IntPair
    step: IntPair
    phases: tuple[StridePhase, ...]
    pool: int = 1

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """The taps in the order in which a row of weights keeps them."""
        return tuple(tap for phase in self.phases for tap in phase.taps)

    def tiles(self, pixels: int) -> tuple[PixelTile, ...]:
        """All target pixels, in tiles of at most so many."""
        return tuple(tile for phase in self.phases for tile in self._tiles(phase, pixels))

    def reach(self, pixels: int) -> IntPair:
        """How many pixels the largest tile has, and how many of the source's it reads."""
        sizes = [(tile.size, tile.phase) for tile in self.tiles(pixels)]
        size, phase = max(sizes, key=lambda pair: pair[0][0] * pair[0][1])
        spread = [[getattr(tap, axis) for tap in phase.taps] or [0] for axis in ("y", "x")]
        read = [
            min(extent, (count - 1) * step + max(places) - min(places) + 1)
            for count, step, places, extent in zip(size, self.step, spread, self.source, strict=True)
        ]
        return size[0] * size[1], read[0] * read[1]

    def _tiles(self, phase: StridePhase, pixels: int) -> list[PixelTile]:
        rows, columns = phase.count
        if not rows or not columns:
            return []
        squares = max(1, pixels // self.pool**2)
        across = even(columns // self.pool, squares)
        width, height = across * self.pool, even(rows // self.pool, max(1, squares // across)) * self.pool
        found = []
        for y, x in product(range(0, rows, height), range(0, columns, width)):
            size = min(height, rows - y), min(width, columns - x)
            found.append(PixelTile(phase, (y, x), size, self._spans(phase, (y, x), size)))
        return found

    def _spans(self, phase: StridePhase, at: IntPair, size: IntPair) -> tuple[TapSpan, ...]:
        base = self.taps.index(phase.taps[0]) if phase.taps else 0
        reached = [(base + i, self._reached(tap, at, size)) for i, tap in enumerate(phase.taps)]
        spans = []
        for rect, run in groupby(reached, key=lambda pair: pair[1]):
            places = [i for i, _ in run]
            if rect:
                spans.append(TapSpan(places[0], places[-1] + 1, rect))
        return tuple(spans)

    def _reached(self, tap: Tap, at: IntPair, size: IntPair) -> Rect:
        """The pixels of a tile for which the tap reads a pixel of the source, not of the padding around it."""
        bounds = []
        for start, count, offset, step, extent in zip(at, size, (tap.y, tap.x), self.step, self.source, strict=True):
            first = min(count, max(0, -(offset // step) - start))
            last = max(first, min(count, (extent - 1 - offset) // step + 1 - start))
            bounds += [first, last]
        return Rect(*bounds)


@dataclass(frozen=True)
class Window:
    """A convolution's geometry, channels left aside. size: of the input image; kernel, stride, ...: as nn.Conv2d's.
    pool: the side of the squares that its output falls into, of each of which the largest pixel alone is wanted."""

    size: IntPair
    kernel: IntPair
    stride: IntPair = (1, 1)
    padding: IntPair = (0, 0)
    dilation: IntPair = (1, 1)
    pool: int = 1

    @cached_property
    def out(self) -> IntPair:
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )  # type: ignore[return-value]

    @cached_property
    def forward(self) -> ConvSweep:
        taps = [Tap(i, j, *self.offset(i, j)) for i, j in product(*map(range, self.kernel))]
        phase = StridePhase((0, 0), (1, 1), self.out, in_order(taps))
        return ConvSweep(self.size, self.out, self.stride, (phase,), self.pool)

    @cached_property
    def backward(self) -> ConvSweep:
        """The sweep from the output's gradient to the input's (BPPSA section 3.3: the transposed Jacobian, never
        formed)."""
        return ConvSweep(
            self.out, self.size, (1, 1), tuple(self._phase((y, x)) for y, x in product(*map(range, self.stride)))
        )

    def _phase(self, start: IntPair) -> StridePhase:
        taps = []
        for i, j in product(*map(range, self.kernel)):
            y, x = (place - offset for place, offset in zip(start, self.offset(i, j), strict=True))
            if y % self.stride[0] == 0 and x % self.stride[1] == 0:
                taps.append(Tap(i, j, y // self.stride[0], x // self.stride[1]))
        rows, columns = (-(-(n - a) // s) for n, a, s in zip(self.size, start, self.stride, strict=True))
        return StridePhase(start, self.stride, (max(rows, 0), max(columns, 0)), in_order(taps))

    def offset(self, row: int, column: int) -> IntPair:
        """The input pixel that an element of the kernel reads for output pixel (0, 0)."""
        return row * self.dilation[0] - self.padding[0], column * self.dilation[1] - self.padding[1]


def in_order(taps: list[Tap]) -> tuple[Tap, ...]:
    """Sorted by column first: all rows of a column reach the same pixels except at the top and the bottom of an
    image."""
    return tuple(sorted(taps, key=lambda tap: (tap.x, tap.y)))


def even(extent: int, most: int) -> int:
    """The length of the parts when `extent` is cut into as few as `most` allows, as evenly as can be."""
    parts = -(-extent // most)
    return -(-extent // parts)
