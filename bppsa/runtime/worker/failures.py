"""What has failed, as one rank knows it, and when that is an error for its callers."""

from __future__ import annotations

import threading

from bppsa.errors import WorkerError

# Seconds in which the reason of a closed connection should be here: an exception elsewhere, or what the neighbour of
# a dead worker knows of its job. It takes milliseconds.
_HEARSAY = 1.0


class Failures:
    """Of a step an exception, until a later step; of the group a worker that is gone, for good.

    changed: the condition of the rank's transport. It is held by all who call a method.
    """

    def __init__(self, changed: threading.Condition, rank: int, size: int) -> None:
        self._changed, self._rank, self._size = changed, rank, size
        self._texts: dict[int, str] = {}  # by step
        self._died: dict[int, str] = {}
        self._left: set[int] = set()
        self._closed: set[int] = set()  # connections whose worker said nothing
        self._finished: dict[int, int] = {}  # the last step of each peer
        self._jobs: dict[int, str] = {}  # of the peers that tell this rank

    def doing(self, peer: int, job: str) -> None:
        self._jobs[peer] = job

    def finished(self, peer: int, step: int) -> None:
        """The peer needs nothing more for this step, and nobody needs it: it may go."""
        self._finished[peer] = step

    def failed(self, step: int, text: str) -> None:
        self._texts.setdefault(step, text)
        self._changed.notify_all()

    def left(self, peer: int) -> None:
        self._left.add(peer)
        self._changed.notify_all()

    def died(self, peer: int, text: str) -> None:
        self._died.setdefault(peer, text)
        self._changed.notify_all()

    def closed(self, peer: int) -> str | None:
        """The connection to a peer is closed without a word. The text for all, where this rank knows its job."""
        self._closed.add(peer)
        self._changed.notify_all()
        if confidant(peer, self._size) != self._rank:
            return None
        job = self._jobs.get(peer)
        text = _death(peer, job)
        self.died(peer, text)
        return text

    def forget(self, step: int) -> None:
        """Exceptions of earlier steps."""
        self._texts = {number: text for number, text in self._texts.items() if number >= step}

    def check(self, step: int) -> None:
        """Raises WorkerError where the step has failed on any rank, or a rank is gone that it needs."""
        gone = {peer for peer in self._closed | self._left | set(self._died) if self._finished.get(peer, -1) < step}
        if gone and not self._explained(step):
            self._changed.wait_for(lambda: self._explained(step), timeout=_HEARSAY)
        if step in self._texts:
            raise WorkerError(self._texts[step])
        texts = [self._died[peer] for peer in sorted(gone & set(self._died))]
        texts += [_death(peer, None) for peer in sorted(gone & self._closed - set(self._died))]
        texts += [f"worker {peer} has closed its transport" for peer in sorted(gone & self._left)]
        if texts:
            raise WorkerError(f"{texts[0]}; the process group must be rebuilt")

    def _explained(self, step: int) -> bool:
        """Whether there is more to say than that connections are closed: whoever closed them may have had a reason."""
        return step in self._texts or bool(self._died)


def confidant(rank: int, size: int) -> int:
    """The worker that is told what another one does."""
    return (rank + 1) % size


def _death(peer: int, job: str | None) -> str:
    return f"worker {peer} died{f' in {job}' if job else ''}: its connection is closed"
