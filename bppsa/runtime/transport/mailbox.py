"""What threads of one process hand to each other, and how all of them learn that one has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from bppsa.runtime.transport.borders import Stopped
from bppsa.schedule.programs.messages import Message


class Alarm:
    """Rung by the first failure; then no thread waits any longer. told: called with that failure."""

    def __init__(self, told: Callable[[BaseException], None] = lambda failure: None) -> None:
        self.changed = threading.Condition()
        self.failure: BaseException | None = None
        self.told = told

    def ring(self, failure: BaseException) -> None:
        with self.changed:
            if self.failure is not None:
                return
            self.failure = failure
            self.changed.notify_all()
        self.told(failure)


class Mailbox:
    """Values by a key, each to be taken a number of times. Taking waits, and raises where the alarm rings."""

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self.values: dict[Hashable, list[Any]] = {}  # key -> [value, how often it will be taken]

    def put(self, key: Hashable, value: Any, times: int = 1) -> None:
        if not times:
            return
        with self.alarm.changed:
            self.values[key] = [value, times]
            self.alarm.changed.notify_all()

    def take(self, key: Hashable) -> Any:
        with self.alarm.changed:
            self.alarm.changed.wait_for(lambda: key in self.values or self.alarm.failure)
            if self.alarm.failure is not None:
                raise Stopped from self.alarm.failure
            entry = self.values[key]
            entry[1] -= 1
            if not entry[1]:
                del self.values[key]
            return entry[0]


class Threads:
    """A transport between the workers of one process: values go by reference."""

    def __init__(self, alarm: Alarm) -> None:
        self.mail = Mailbox(alarm)

    def send(self, message: Message, value: Any) -> None:
        self.mail.put(message.number, value)

    def expect(self, *messages: Message) -> None: ...

    def receive(self, message: Message, into: Sequence[Tensor] | None = None) -> Any:
        return self.mail.take(message.number)

    def doing(self, job: str) -> None: ...
