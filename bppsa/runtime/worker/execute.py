"""Runs the steps of workers: one lane in the calling thread, several in threads of their own."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter

from bppsa.errors import WorkerError
from bppsa.runtime.worker.mailbox import Alarm, Mailbox, Stopped
from bppsa.runtime.worker.transport import Transport, Work
from bppsa.schedule.messages import Item, Step
from bppsa.schedule.program import Action


@dataclass(frozen=True)
class Lane:
    """What one thread does. worker: whose lane it is; its lanes share `mailbox`."""

    worker: int
    steps: Sequence[Step]
    work: Work
    mailbox: Mailbox
    transport: Transport
    readers: Counter[Item]  # how many of the worker's steps read an item
    inside: Callable[[], AbstractContextManager[None]]  # what its thread runs in
    times: dict[Action, tuple[float, float]]  # seconds, start and end

    def run(self) -> None:
        """Raises WorkerError, which names the job, where a job raises."""
        with self.inside():
            for at, step in enumerate(self.steps):
                self.run_step(step, self.steps[at + 1 : at + 2])

    def run_step(self, step: Step, following: Sequence[Step]) -> None:
        for message in (message for later in following for message in later.receives):
            self.transport.expect(message)
        for message in step.receives:
            self.mailbox.put(message.item, self.transport.receive(message), self.readers[message.item])
        inputs = [self.mailbox.take(item) for item in step.reads]
        data = [value for item, value in zip(step.reads, inputs, strict=True) if not item.is_token]
        begin = perf_counter()
        try:
            results = iter(self.work.run(step.action, data))
        except WorkerError:
            raise
        except Exception as error:
            raise failed(self.worker, step.action, error) from error
        self.times[step.action] = begin, perf_counter()
        made = {item: None if item.is_token else next(results) for item in step.writes}
        for item, value in made.items():
            self.mailbox.put(item, value, self.readers[item])
        for message in step.sends:
            self.transport.send(message, made[message.item])


def failed(worker: int, action: Action, error: BaseException) -> WorkerError:
    told = "".join(traceback.format_exception(error))
    return WorkerError(f"worker {worker} failed in job {action}: {type(error).__name__}: {error}\n{told}")


def run_all(jobs: Sequence[Callable[[], None]], alarm: Alarm) -> None:
    """Each in a thread of its own, one alone in this one. Raises the first failure, when all have ended."""
    if len(jobs) == 1:
        return jobs[0]()

    def told(future: Future[None]) -> None:
        error = future.exception()
        if error is not None and not isinstance(error, Stopped):
            alarm.ring(error)

    with ThreadPoolExecutor(len(jobs), "bppsa worker") as pool:
        for job in jobs:
            pool.submit(job).add_done_callback(told)
    if alarm.failure is not None:
        raise alarm.failure
