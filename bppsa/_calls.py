"""Which decisions the present call of a compiled model has taken: a list a thread, begun anew by each call. And what is
worth one warning a process."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from bppsa.report import Decision

_thread = threading.local()


def note(decision: Decision) -> None:
    taken = getattr(_thread, "taken", None)
    if taken is not None:
        taken.append(decision)


@contextmanager
def collecting() -> Iterator[list[Decision]]:
    """All decisions noted in this thread within the block."""
    taken: list[Decision] = []
    push(taken)
    try:
        yield taken
    finally:
        pop()


def push(taken: list[Decision]) -> None:
    """Note decisions in `taken` until `pop`."""
    _thread.outer = [*getattr(_thread, "outer", []), getattr(_thread, "taken", None)]
    _thread.taken = taken


def pop() -> None:
    """Go back to the list before; what an inner call has decided, the outer one has too."""
    if not getattr(_thread, "outer", None):
        return
    *_thread.outer, before = _thread.outer
    if before is not None:
        before.extend(_thread.taken)
    _thread.taken = before


@functools.cache
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
