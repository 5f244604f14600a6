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


Reference = Callable[[], Any]  # None where what it leads to is gone


class Remembered(Generic[P]):
    """Plans by the key of a call, for threads and forked children; the `most` that were used last are kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: OrderedDict[Hashable, tuple[P, Sequence[Reference]]] = OrderedDict()
        self.renew_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        """In a forked child, where the thread that held it does not exist."""
        self.lock = threading.Lock()

    def find(
        self,
        key: Hashable,
        make: Callable[[], P],
        named: Sequence[Reference],
        fits: Callable[[P], bool] = lambda plan: True,
    ) -> P:
        """named: references to what the key names by its address. When one of them is gone, something else may have
        its address, so the plan is made again. fits: whether a plan with this key is for the call at hand."""
        with self.lock:
            found = self.known.get(key)
            if found is None or not (all_there(found[1]) and fits(found[0])):
                self.forget_what_is_gone()
                found = self.known[key] = make(), named
                while len(self.known) > self.most:
                    self.known.popitem(last=False)
            self.known.move_to_end(key)
            return found[0]

    def forget_what_is_gone(self) -> None:
        for key, (_, named) in list(self.known.items()):
            if not all_there(named):
                del self.known[key]


def all_there(references: Sequence[Reference]) -> bool:
    return all(refer() is not None for refer in references)


def place(tensor: Tensor, reached: Sequence[Tensor], whose: str) -> int | Tensor:
    """Of a tensor that was captured: where it is among those that a cell or a model reaches, or itself, a constant."""
    for at, known in enumerate(reached):
        if known is tensor:
            return at
    if tensor.requires_grad:
        what = f"the {whose} reaches a tensor in a way that cannot be followed"
        raise Unsupported(Reason(what, mend="make it an attribute"))
    return tensor
