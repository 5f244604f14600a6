"""The messages of a step that are on their way, as one rank knows them. Its users hold a lock."""

from __future__ import annotations

from bppsa.runtime.transport.layout import PackedMessage

MessageKey = tuple[int, int]  # step and number of a message


class Table:
    """What others want may be asked for before it is there, and what is there may be wanted by nobody yet."""

    def __init__(self) -> None:
        self.outbox: dict[MessageKey, PackedMessage] = {}
        self.wanted: set[MessageKey] = set()  # by others
        self.asked: set[MessageKey] = set()  # by this rank
        self.arrived: dict[MessageKey, PackedMessage] = {}

    def begin(self, step: int) -> None:
        """Forgets earlier steps. What others have asked for already is of this one."""
        self.outbox.clear()
        self.asked.clear()
        self.wanted = {key for key in self.wanted if key[0] >= step}
        self.arrived = {key: packed for key, packed in self.arrived.items() if key[0] >= step}

    def offer(self, key: MessageKey, packed: PackedMessage) -> bool:
        """Whether it is to be sent now: a large value waits until it is wanted."""
        if packed.large and key not in self.wanted:
            self.outbox[key] = packed
            return False
        return True

    def want(self, key: MessageKey) -> PackedMessage | None:
        """What is to be sent now, as another rank wants it."""
        packed = self.outbox.pop(key, None)
        if packed is None:
            self.wanted.add(key)
        return packed

    def ask(self, key: MessageKey) -> bool:
        """Whether it is asked for the first time."""
        first = key not in self.asked
        self.asked.add(key)
        return first
