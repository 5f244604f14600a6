"""A line on standard error for whoever waits for what is done once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

AFTER_S = 2.0


class LateNotice:
    """Told once a process, when all that it is about has together taken AFTER_S."""

    def __init__(self) -> None:
        self.spent_s, self.told = 0.0, False

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        timer = threading.Timer(max(0.0, AFTER_S - self.spent_s), self.tell, [text])
        timer.daemon = True
        start = time.perf_counter()
        if not self.told:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.spent_s += time.perf_counter() - start

    def tell(self, text: str) -> None:
        if not self.told:
            self.told = True
            print(f"bppsa: {text}", file=sys.stderr, flush=True)


BUILDS, LOOPS = LateNotice(), LateNotice()


def building(kept_in: Path) -> AbstractContextManager[None]:
    """Say where kernels are kept."""
    return BUILDS.during(f"building kernels once, kept in {kept_in}")


def looking_at_loop(place: str) -> AbstractContextManager[None]:
    """Say which loop is logged and compared."""
    return LOOPS.during(f"looking at the loop at {place}, once in each process for each kind of call")
