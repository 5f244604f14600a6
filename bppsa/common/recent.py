"""A map that keeps what was used last, for threads and forked children."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from bppsa.common.process.forks import renewed_in_children

V = TypeVar("V")


class RecentMap(Generic[V]):
    """Keeps the `most` that were used last. A copy begins empty."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: OrderedDict[Hashable, V] = OrderedDict()
        self.renew_lock()
        renewed_in_children(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.most,)

    def __len__(self) -> int:
        return len(self.known)

    def renew_lock(self) -> None:
        self.lock = threading.RLock()  # the end of what is forgotten may run code that asks again

    def values(self) -> list[V]:
        with self.lock:
            return list(self.known.values())

    def get(self, key: Hashable) -> V | None:
        with self.lock:
            if key not in self.known:
                return None
            self.known.move_to_end(key)
            return self.known[key]

    def keep(self, key: Hashable, value: V) -> None:
        with self.lock:
            self.put(key, value)

    def find(self, key: Hashable, make: Callable[[], V]) -> V:
        """What is kept under the key, or else is made for it, which must not take long: all threads wait."""
        with self.lock:
            value = self.known[key] if key in self.known else make()
            self.put(key, value)
            return value

    def drop(self, key: Hashable) -> None:
        with self.lock:
            self.known.pop(key, None)

    def forget(self, is_over: Callable[[V], bool]) -> None:
        with self.lock:
            for key in [key for key, value in self.known.items() if is_over(value)]:
                del self.known[key]

    def put(self, key: Hashable, value: V) -> None:
        self.known[key] = value
        self.known.move_to_end(key)
        while len(self.known) > self.most:
            self.known.popitem(last=False)


def remember(known: dict[Any, V], key: Hashable, value: V, most: int) -> None:
    """Keeps a value in a dict that is read too often for a lock. One that holds `most` is emptied before."""
    if len(known) >= most:
        known.clear()
    known[key] = value
