"""The sums of gradients over ranks, while other jobs run: each rank's goes to a root, which adds them in the order of
ranks and sends the total to the other owners."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from bppsa.distributed.steps.exchange import GradientReduction
from bppsa.runtime.transport.group import GroupTransport
from bppsa.runtime.worker.gradients import GradientSum, Grads, Sums, total


class Reducing:
    """One rank's part in summing the gradients of a step."""

    def __init__(
        self, transport: GroupTransport, rank: int, reductions: Sequence[GradientReduction], sums: Sums
    ) -> None:
        self.transport, self.rank, self.sums = transport, rank, sums
        self.computing = [(r, set(sums.turns).intersection(r.stages)) for r in reductions]
        self.complete: list[GradientReduction] = []  # of this rank's part, which is not yet sent
        self.rooted: list[GradientReduction] = []  # here, and other ranks' parts may be on their way
        self.results = [r for r in reductions if rank in r.results]
        self.found: Grads = {}
        self.lock = threading.Lock()  # of lanes
        self.note_complete()  # what this rank computes nothing of

    def ended(self, stage: int) -> None:
        """This rank has its last gradient of the stage."""
        with self.lock:
            for _, stages in self.computing:
                stages.discard(stage)
            self.note_complete()

    def note_complete(self) -> None:
        self.complete += [r for r, stages in self.computing if not stages]
        self.computing = [(r, stages) for r, stages in self.computing if stages]

    def go_on(self) -> None:
        """Between two jobs: sends what is complete, and adds what has come. Waits for nothing."""
        if (self.complete or self.rooted) and self.lock.acquire(blocking=False):
            try:
                self.send_complete()
                for r in [r for r in self.rooted if all(map(self.transport.has, r.received))]:
                    self.add(r)
            finally:
                self.lock.release()

    def gradients(self) -> Grads:
        """The sums for the weights that this rank owns, once its jobs are done."""
        self.send_complete()
        while self.rooted:
            self.add(self.rooted[0])
        for r in self.results:
            self.found.update(self.transport.receive(r.results[self.rank]))
        return self.found

    def send_complete(self) -> None:
        while self.complete:
            r = self.complete.pop(0)
            message = r.contributions.get(self.rank)
            if message is not None:
                self.transport.send(message, self.sums.of(r.stages, r.names).grads)
            if self.rank in r.results:
                self.transport.expect(r.results[self.rank])
            if r.root == self.rank:
                self.rooted.append(r)
                self.transport.expect(*r.received)

    def add(self, r: GradientReduction) -> None:
        self.rooted.remove(r)
        grads = total(self.parts(r))
        for message in r.results.values():
            self.transport.send(message, grads)
        self.found.update(grads)

    def parts(self, r: GradientReduction) -> Iterator[GradientSum]:
        for message in r.contributions.values():
            if message is None:
                yield self.sums.of(r.stages, r.names)
            else:
                grads, part = self.transport.receive(message), GradientSum()
                part.add(grads, own=grads)
                yield part
