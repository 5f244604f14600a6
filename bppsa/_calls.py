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
    before = getattr(_thread, "taken", None)
    taken: list[Decision] = []
    _thread.taken = taken
    try:
        yield taken
    finally:
        _thread.taken = before


def begin() -> list[Decision]:
    """Start the list of a call that nobody will tell us the end of."""
    _thread.taken = []
    return _thread.taken


@functools.cache
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
