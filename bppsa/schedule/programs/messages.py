"""What the jobs of a program hand to each other, and the messages that this takes between workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from bppsa.errors import ScheduleError
from bppsa.schedule.programs.program import Action

TOKEN = "T"  # with the job's direction behind it


class Item(NamedTuple):
    """What one job makes and others read. kind: "A" an activation, "G" a gradient, ...; number: of the value."""

    kind: str
    number: int
    batch: int
    by: int = 0  # the stage that made it, where several make one of the same number

    def __str__(self) -> str:
        return f"{self.kind}{self.number}.{self.by}/{self.batch}"

    @property
    def is_token(self) -> bool:
        """Whether it has no value, and says that a job has ended."""
        return self.kind.startswith(TOKEN)


class Message(NamedTuple):
    """An item on its way from worker to worker. number: of the message among those of a step, the same everywhere."""

    item: Item
    source: int
    target: int
    number: int

    def __str__(self) -> str:
        return f"{self.item} {self.source}->{self.target}"


class JobStep(NamedTuple):
    """One job of a worker's program, with what comes in before it and goes out after it."""

    action: Action
    reads: tuple[Item, ...]
    receives: tuple[Message, ...]
    writes: tuple[Item, ...]
    sends: tuple[Message, ...]

    def __str__(self) -> str:
        parts = (*(f"<{message}" for message in self.receives), self.action, *(f">{message}" for message in self.sends))
        return " ".join(map(str, parts))


Items = Callable[[Action], Sequence[Item]]


def with_messages(lists: Sequence[Sequence[Action]], reads: Items, writes: Items) -> list[list[JobStep]]:
    """The jobs of each worker, with the messages between workers: an item goes once to each worker that reads it, is
    sent by the job that makes it and received by the worker's first job that reads it.

    Raises ScheduleError where an item is read that no job makes.
    """
    read, written = ([[tuple(of(action)) for action in actions] for actions in lists] for of in (reads, writes))
    maker = {item: worker for worker, per_job in enumerate(written) for items in per_job for item in items}
    check_made(lists, read, maker)
    numbers, sent = count(), dict[Item, list[Message]]()
    received: list[list[tuple[Message, ...]]] = []  # of each worker, by each of its jobs
    for worker, per_job in enumerate(read):
        received.append([])
        seen = set[Item]()
        for items in per_job:
            new = dict.fromkeys(item for item in items if maker[item] != worker and item not in seen)
            seen.update(new)
            messages = tuple(Message(item, maker[item], worker, next(numbers)) for item in new)
            received[-1].append(messages)
            for message in messages:
                sent.setdefault(message.item, []).append(message)
    return [
        [
            JobStep(*job, tuple(message for item in job[-1] for message in sent.get(item, ())))
            for job in zip(*of_worker, strict=True)
        ]
        for of_worker in zip(lists, read, received, written, strict=True)
    ]


def check_made(
    lists: Sequence[Sequence[Action]], read: Sequence[Sequence[Sequence[Item]]], maker: Mapping[Item, int]
) -> None:
    for worker, (actions, per_job) in enumerate(zip(lists, read, strict=True)):
        for action, items in zip(actions, per_job, strict=True):
            for item in items:
                if item not in maker:
                    raise ScheduleError(f"{action} of worker {worker} reads {item}, which no job makes")
