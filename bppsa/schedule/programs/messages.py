"""What the jobs of a program hand to each other, and the messages that this takes between workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


Sent = dict[Item, list[Message]]


def with_messages(lists: Sequence[Sequence[Action]], reads: Items, writes: Items) -> list[list[JobStep]]:
    """The jobs of each worker, with the messages between workers: an item goes once to each worker that reads it, is
    sent by the job that makes it and received by the worker's first job that reads it.

    Raises ScheduleError where an item is read that no job makes.
    """
    written = [[tuple(writes(action)) for action in actions] for actions in lists]
    makers = {item: worker for worker, jobs in enumerate(written) for items in jobs for item in items}
    sent: Sent = {}
    numbers = count()
    read = [list(received(worker, actions, reads, makers, sent, numbers)) for worker, actions in enumerate(lists)]
    return [
        [
            JobStep(action, *given, made, tuple([message for item in made for message in sent.get(item, ())]))
            for action, given, made in zip(*of_worker, strict=True)
        ]
        for of_worker in zip(lists, read, written, strict=True)
    ]


def received(
    worker: int, actions: Sequence[Action], reads: Items, makers: Mapping[Item, int], sent: Sent, numbers: Iterator[int]
) -> Iterator[tuple[tuple[Item, ...], tuple[Message, ...]]]:
    """What each job of a worker reads, and the messages that come for it: they are new, and noted as sent."""
    seen = set[Item]()
    for action in actions:
        items, messages = tuple(reads(action)), list[Message]()
        for item in items:
            maker = makers.get(item)
            if maker is None:
                raise ScheduleError(f"{action} of worker {worker} reads {item}, which no job makes")
            if maker != worker and item not in seen:
                seen.add(item)
                messages.append(Message(item, maker, worker, next(numbers)))
                sent.setdefault(item, []).append(messages[-1])
        yield items, tuple(messages)
