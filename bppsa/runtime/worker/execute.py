"""Runs the steps of workers: one lane in the calling thread, several in threads of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from time import perf_counter

from bppsa.errors import WorkerError
from bppsa.runtime.transport.borders import JobWork, Stopped, Transport
from bppsa.runtime.transport.mailbox import Alarm, Mailbox
from bppsa.runtime.worker.fetched import Fetched
from bppsa.schedule.programs.messages import Item, JobStep, Message
from bppsa.schedule.programs.program import Action

AHEAD = 4  # jobs of which the messages are asked for at once; of weights, which are large, one job's


@dataclass(frozen=True)
class Lane:
    """What one thread does. worker: whose lane it is; its lanes share `mailbox`."""

    worker: int
    steps: Sequence[JobStep]
    work: JobWork
    mailbox: Mailbox
    transport: Transport
    readers: Counter[Item]  # how many of the worker's steps read an item
    inside: Callable[[], AbstractContextManager[None]]  # what its thread runs in
    times: dict[Action, tuple[float, float]]  # seconds, start and end
    fetches: Mapping[Action, Message]  # jobs that need weights which are not there
    frees: Collection[Action]  # jobs after which fetched weights are given up
    fetched: Mapping[int, Fetched]  # by stage
    between: Callable[[], None]  # what else the thread does after each job

    def run(self) -> None:
        """Raises JobError where a job raises, and WorkerError where another worker has failed."""
        with self.inside():
            try:
                for at, step in enumerate(self.steps):
                    self.expect(at)
                    self.run_step(step)
                    self.between()
            finally:
                for fetched in self.fetched.values():
                    fetched.free()

    def expect(self, at: int) -> None:
        """What comes in after the step of this number."""
        if not at % AHEAD:
            coming = self.steps[at : at + 2 * AHEAD]
            self.transport.expect(*(message for step in coming for message in step.receives))
        for step in self.steps[at + 1 : at + 2]:
            if step.action in self.fetches:
                self.transport.expect(self.fetches[step.action])

    def run_step(self, step: JobStep) -> None:
        for message in step.receives:
            self.mailbox.put(message.item, self.transport.receive(message), self.readers[message.item])
        if step.action in self.fetches:
            fetched = self.fetched[step.action.stage]
            fetched.filled(self.transport.receive(self.fetches[step.action], fetched.room()))
        inputs = [self.mailbox.take(item) for item in step.reads]
        data = [value for item, value in zip(step.reads, inputs, strict=True) if not item.is_token]
        self.transport.doing(f"job {step.action}")
        begin = perf_counter()
        try:
            results = iter(self.work.run(step.action, data))
        except Stopped:  # of another worker, as a job sends what it has made
            raise
        except Exception as error:
            raise JobError(self.worker, step.action, error) from error
        self.times[step.action] = begin, perf_counter()
        if step.action in self.frees:
            self.fetched[step.action.stage].free()
        made = {item: None if item.is_token else next(results) for item in step.writes}
        for item, value in made.items():
            self.mailbox.put(item, value, self.readers[item])
        for message in step.sends:
            self.transport.send(message, made[message.item])


class JobError(WorkerError):
    """A job raised: its own error is the cause."""

    def __init__(self, worker: int, action: Action, error: BaseException) -> None:
        super().__init__(f"worker {worker} failed in job {action}: {type(error).__name__}: {error}")
        self.action = action


def run_all(jobs: Sequence[Callable[[], None]], alarm: Alarm) -> None:
    """Each in a thread of its own, one alone in this one. Raises the first failure, when all have ended."""
    if len(jobs) == 1:
        with ringing(alarm):
            return jobs[0]()
    threads = [Thread(target=in_thread, args=(job, alarm), name="bppsa worker") for job in jobs]
    try:
        with ringing(alarm):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if alarm.failure is not None:
        raise alarm.failure


def in_thread(job: Callable[[], None], alarm: Alarm) -> None:
    with suppress(BaseException), ringing(alarm):  # who started the thread raises what has rung
        job()


@contextmanager
def ringing(alarm: Alarm) -> Iterator[None]:
    """Whatever ends the block early, an interrupt too, ends all threads after the jobs that they run."""
    try:
        yield
    except BaseException as error:
        alarm.ring(error)
        raise
