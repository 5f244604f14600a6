"""A line on standard error for whoever waits for what is done once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

BUILDS_AFTER_S = 2.0
LOOPS_AFTER_S = 1.0
AGAIN_S = 10.0


class LateNotice:
    """Told once a process, when all that it is about has together taken `after_s`; where `again_s` is given, a part
    that takes longer than that is told of again."""

    def __init__(self, after_s: float, again_s: float | None = None) -> None:
        self.after_s, self.again_s, self.spent_s, self.told = after_s, again_s, 0.0, False

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        over, start = threading.Event(), time.perf_counter()
        if self.again_s or not self.told:
            threading.Thread(target=self.tell, args=(text, over, start), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            self.spent_s += time.perf_counter() - start

    def tell(self, text: str, over: threading.Event, start: float) -> None:
        wait_s = self.again_s if self.told else max(0.0, self.after_s - self.spent_s)
        while wait_s is not None and not over.wait(wait_s):
            so_far = f", {time.perf_counter() - start:.0f} s so far" if self.told else ""
            if self.again_s or not self.told:
                self.told = True
                print(f"bppsa: {text}{so_far}", file=sys.stderr, flush=True)
            wait_s = self.again_s


BUILDS, LOOPS = LateNotice(BUILDS_AFTER_S), LateNotice(LOOPS_AFTER_S, AGAIN_S)


def building(kept_in: Path) -> AbstractContextManager[None]:
    """Say where kernels are kept."""
    return BUILDS.during(f"building kernels once, kept in {kept_in}")


def looking_at_loop(place: str) -> AbstractContextManager[None]:
    """Say which loop is logged and compared."""
    return LOOPS.during(f"looking at the loop at {place}, once in each process for each kind of call")
