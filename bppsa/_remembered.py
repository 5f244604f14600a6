"""What drivers make once for each kind of call and keep, and where a call finds the tensors that it was made with."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from bppsa.errors import Reason, Unsupported

P = TypeVar("P")


class Remembered(Generic[P]):
    """Plans by the key of a call, for threads and forked children; the `most` that were used last are kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: OrderedDict[Hashable, tuple[P, Any]] = OrderedDict()
        self.renew_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        """In a forked child, where the thread that held it does not exist."""
        self.lock = threading.Lock()

    def find(self, key: Hashable, make: Callable[[], P], alive: Any) -> P:
        """alive: what has to live as long as the key, which names it by its identity."""
        with self.lock:
            found = self.known.get(key)
            if found is None:
                found = self.known[key] = make(), alive
                while len(self.known) > self.most:
                    self.known.popitem(last=False)
            self.known.move_to_end(key)
            return found[0]


def place(tensor: Tensor, reached: Sequence[Tensor], whose: str) -> int | Tensor:
    """Of a tensor that was captured: where it is among those that a cell or a model reaches, or itself, a constant."""
    for at, known in enumerate(reached):
        if known is tensor:
            return at
    if tensor.requires_grad:
        what = f"the {whose} reaches a tensor in a way that cannot be followed"
        raise Unsupported(Reason(what, mend="make it an attribute"))
    return tensor
