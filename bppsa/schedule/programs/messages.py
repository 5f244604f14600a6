"""What the jobs of a program hand to each other, and the messages that this takes between workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class JobStep:
    """One job of a worker's program, with what comes in before it and goes out after it."""

    action: Action
    reads: tuple[Item, ...]
    writes: tuple[Item, ...]
    receives: tuple[Message, ...]
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
    maker = {item: worker for worker, actions in enumerate(lists) for action in actions for item in writes(action)}
    messages: dict[Item, list[Message]] = {item: [] for item in maker}
    received: list[list[tuple[Message, ...]]] = []
    for worker, actions in enumerate(lists):
        seen: set[Item] = set()
        received.append([])
        for action in actions:
            new = []
            for item in reads(action):
                if item not in maker:
                    raise ScheduleError(f"{action} of worker {worker} reads {item}, which no job makes")
                if maker[item] != worker and item not in seen:
                    seen.add(item)
                    new.append(Message(item, maker[item], worker, -1))
            received[-1].append(tuple(new))
    numbers: Mapping[Message, int] = {
        message: number
        for number, message in enumerate(m for per_worker in received for new in per_worker for m in new)
    }
    received = [[tuple(m._replace(number=numbers[m]) for m in new) for new in per_worker] for per_worker in received]
    for message in (m for per_worker in received for new in per_worker for m in new):
        messages[message.item].append(message)
    return [
        [
            JobStep(
                action,
                tuple(reads(action)),
                tuple(writes(action)),
                new,
                tuple(message for item in writes(action) for message in messages[item]),
            )
            for action, new in zip(actions, news, strict=True)
        ]
        for actions, news in zip(lists, received, strict=True)
    ]
