"""A pause of Python's garbage collector, which would go through a log or a plan again and again while it grows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bppsa.common.process.forks import in_children

_lock = threading.Lock()
_pauses = 0  # of all threads
_was_on = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within the block no cycles are collected, in any thread; references that end still free what they held."""
    begin()
    try:
        yield
    finally:
        end()


def begin() -> None:
    global _pauses, _was_on
    with _lock:
        if not _pauses:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1


def end() -> None:
    global _pauses
    with _lock:
        _pauses = max(0, _pauses - 1)
        if not _pauses and _was_on:
            gc.enable()


@in_children
def resume_in_child() -> None:
    """A forked child has none of the other threads, and would collect nothing for good."""
    global _lock, _pauses
    _lock = threading.Lock()
    if _pauses:
        _pauses = 0
        if _was_on:
            gc.enable()
