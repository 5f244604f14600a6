"""A line on standard error for whoever waits for kernels to be built."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AFTER_S = 2.0

_spent_s = 0.0  # in builds of this process
_told = False


@contextmanager
def building(kept_in: Path) -> Iterator[None]:
    """Say once a process where kernels are kept, when all builds together have taken AFTER_S."""
    global _spent_s
    timer = threading.Timer(max(0.0, AFTER_S - _spent_s), tell, [kept_in])
    timer.daemon = True
    start = time.perf_counter()
    if not _told:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _spent_s += time.perf_counter() - start


def tell(kept_in: Path) -> None:
    global _told
    if not _told:
        _told = True
        print(f"bppsa: building kernels once, kept in {kept_in}", file=sys.stderr, flush=True)
