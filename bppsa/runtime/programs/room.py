"""Where in one piece of memory each of a program's buffers lies, planned once: first fit, in the program's order."""

from __future__ import annotations

LINE = 64  # bytes


class Room:
    """`size`: bytes that all buffers so far need."""

    def __init__(self) -> None:
        self.size = 0
        self._gaps: list[tuple[int, int]] = []  # (begin, end), in order, none next to another
        self._taken: dict[int, int] = {}  # bytes by offset

    def take(self, nbytes: int) -> int:
        """The offset of a new buffer, aligned to a cache line."""
        nbytes = max(LINE, -(-nbytes // LINE) * LINE)
        for i, (begin, end) in enumerate(self._gaps):
            if end - begin >= nbytes or end == self.size:
                rest = (begin + nbytes, end)
                self._gaps[i : i + 1] = [rest] if rest[0] < end else []
                break
        else:
            begin = self.size
        self.size = max(self.size, begin + nbytes)
        self._taken[begin] = nbytes
        return begin

    def free(self, offset: int) -> None:
        """Let later buffers lie there."""
        begin, end = offset, offset + self._taken.pop(offset)
        apart = [gap for gap in self._gaps if gap[1] < begin or gap[0] > end]
        touching = [gap for gap in self._gaps if not (gap[1] < begin or gap[0] > end)]
        joined = (min([begin, *(b for b, _ in touching)]), max([end, *(e for _, e in touching)]))
        self._gaps = sorted([*apart, joined])
