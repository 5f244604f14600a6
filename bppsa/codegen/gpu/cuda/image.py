"""What threads hand to each other within a step: rows in shared memory, and when all have to wait.

Rows stand there twice, for even and for odd steps: who is a step ahead writes where nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bppsa.codegen.language.ir import Buffer, Kind

QUAD = 4
# A row as it is at the begin of a step, and as the step leaves it for the next one; and one that a step alone has.
ENTRY, EXIT, OWN, OWN_BEFORE = "entry", "exit", "own", "own before"
AFTER_A_STEP = {ENTRY: EXIT, EXIT: ENTRY, OWN: OWN_BEFORE, OWN_BEFORE: OWN}
CARRIED = (Kind.STATE, Kind.RUNNING)

ImageSlot = tuple[str, str]  # of which row, and as it is when
Range = tuple[int, int]


@dataclass
class Waiting:
    """What was written to and read from the image since all threads last met."""

    written: dict[ImageSlot, set[Range]] = field(default_factory=dict)
    read: set[ImageSlot] = field(default_factory=set)

    def before_reading(self, slot: ImageSlot) -> bool:
        """Whether all have to meet first."""
        return slot in self.written

    def before_writing(self, slot: ImageSlot, low: int, high: int) -> bool:
        return slot in self.read or any(a < high and low < z for a, z in self.written.get(slot, ()))

    def met(self) -> None:
        self.written.clear()
        self.read.clear()

    def of_next_step(self) -> Waiting:
        written = {(name, AFTER_A_STEP[when]): set(ranges) for (name, when), ranges in self.written.items()}
        return Waiting(written, {(name, AFTER_A_STEP[when]) for name, when in self.read})

    def __or__(self, other: Waiting) -> Waiting:
        both = {**self.written, **other.written}
        written = {slot: self.written.get(slot, set()) | other.written.get(slot, set()) for slot in both}
        return Waiting(written, self.read | other.read)


@dataclass(frozen=True)
class ImageLayout:
    """Tells where rows begin in one of the two halves of the image; `size` numbers each."""

    offsets: dict[str, int]
    size: int

    def at(self, slot: ImageSlot, column: int) -> str:
        """The address, as C++; `odd` is the parity of the step."""
        name, when = slot
        half = "(1 - odd)" if when is EXIT else "odd"
        return f"{self.offsets[name] + column} + {half} * {self.size}"


def layout(rows: Iterable[tuple[str, int]]) -> ImageLayout:
    """rows: names and widths."""
    offsets, size = {}, 0
    for name, width in rows:
        offsets[name] = size
        size += -(-width // QUAD) * QUAD
    return ImageLayout(offsets, size)


def when(buffer: Buffer, *, leaves: bool) -> str:
    """leaves: whether it is the side of the step from which the next step starts."""
    return OWN if buffer.kind not in CARRIED else EXIT if leaves else ENTRY
