"""The steps of a worker's program: its jobs, the items that these read and make, and the messages that carry items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
