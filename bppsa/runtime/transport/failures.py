"""What has failed, as one rank knows it, and when that is an error for its callers."""

from __future__ import annotations

import threading
from collections.abc import Set

from bppsa.runtime.transport.borders import Stopped

# Seconds in which the reason of a closed connection should be here: an exception elsewhere, or what the confidant of
# a dead worker knows of its job. It takes milliseconds.
_HEARSAY = 1.0


class Failures:
    """Keeps what failed: an exception until a later step, and a worker that is gone for good.

    changed: the condition of the rank's transport. It is held by all who call a method.
    """

    def __init__(self, changed: threading.Condition, rank: int, size: int) -> None:
        self._changed, self._rank, self._size = changed, rank, size
        self._texts: dict[int, str] = {}  # by step
        self._gone: dict[int, str] = {}  # by worker, and why
        self._left: set[int] = set()
        self._closed: set[int] = set()  # connections whose worker said nothing
        self._finished: dict[int, int] = {}  # the last step of each peer
        self._jobs: dict[int, tuple[int, str]] = {}  # of the peers that tell this rank, with the step

    def doing(self, peer: int, step: int, job: str) -> None:
        self._jobs[peer] = step, job

    def finished(self, peer: int, step: int) -> None:
        """The peer needs nothing more in this step: it may go, if nobody needs more of it."""
        self._finished[peer] = step

    def failed(self, step: int, text: str) -> None:
        self._texts.setdefault(step, text)
        self._changed.notify_all()

    def left(self, peer: int) -> None:
        self._left.add(peer)
        self._changed.notify_all()

    def gone(self, worker: int, text: str) -> None:
        self._gone.setdefault(worker, text)
        self._changed.notify_all()

    def closed(self, peer: int) -> str | None:
        """The connection to a peer is closed without a word. The text for all, where this rank knows its job."""
        self._closed.add(peer)
        self._changed.notify_all()
        if confidant(peer, self._size) != self._rank:
            return None
        step, job = self._jobs.get(peer, (0, ""))
        text = _death(peer, job if step > self._finished.get(peer, -1) else "")
        self.gone(peer, text)
        return text

    def forget(self, step: int) -> None:
        """Exceptions of earlier steps."""
        self._texts = {number: text for number, text in self._texts.items() if number >= step}

    def known(self, step: int) -> bool:
        """Whether every rank learns without this one that the step fails."""
        return step in self._texts or bool(self._missing(step))

    def check(self, step: int, sources: Set[int] = frozenset()) -> None:
        """Raises Stopped where the step has failed on any rank, or a rank is gone that it needs. sources: of what
        is not there yet; they are needed though they may have finished. Who was gone first is named: others may have
        ended for that reason."""
        missing = self._missing(step) | (self._absent() & sources)
        if missing and not self._explained(step):
            self._changed.wait_for(lambda: self._explained(step), timeout=_HEARSAY)
        if step in self._texts:
            raise Stopped(self._texts[step])
        if missing:
            first = next(iter(self._gone.values()), "") or self._reason(min(missing))
            raise Stopped(f"{first}; the process group must be rebuilt")

    def gone_soon(self, peer: int) -> bool:
        """Whether the peer is gone, or turns out to be in the time that the news takes."""
        return self._changed.wait_for(lambda: peer in self._absent(), timeout=_HEARSAY)

    def _reason(self, peer: int) -> str:
        return f"worker {peer} has closed its transport" if peer in self._left else _death(peer, "")

    def _absent(self) -> set[int]:
        return self._closed | self._left | set(self._gone)

    def _missing(self, step: int) -> set[int]:
        return {worker for worker in self._absent() if self._finished.get(worker, -1) < step}

    def _explained(self, step: int) -> bool:
        """Whether there is more to say than that connections are closed: whoever closed them may have had a reason."""
        return step in self._texts or bool(self._gone)


def confidant(rank: int, size: int) -> int:
    """The worker that is told what another one does."""
    return (rank + 1) % size


def _death(peer: int, job: str) -> str:
    return f"worker {peer} died{f' in {job}' if job else ''}: its connection is closed"
