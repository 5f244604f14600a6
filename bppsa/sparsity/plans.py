"""The plans of sparse products and sums, made once for each pair of patterns and kept for the next call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

from bppsa.sparsity.patterns import union
from bppsa.sparsity.patterns.engine import engine
from bppsa.sparsity.patterns.pattern import Pattern

CACHE_BYTES = 512 << 20  # of the plans of each kind


class Sized(Protocol):
    @property
    def bytes(self) -> int: ...


P = TypeVar("P", bound=Sized)


class Plans(Generic[P]):
    """Plans by the content of two patterns. The least recently used are forgotten beyond CACHE_BYTES."""

    def __init__(self, make: Callable[[Pattern, Pattern], P]) -> None:
        self._make = make
        self._known: OrderedDict[tuple[bytes, bytes], P] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, a: Pattern, b: Pattern) -> P:
        with _disable_current_modes():  # a recorder, or fake tensors, see values only
            key = a.digest, b.digest
            found = self._known.get(key)
            if found is None:
                found = self._make(a, b)
                self._keep(key, found)
            else:
                self._used(key)
            return found

    def _used(self, key: tuple[bytes, bytes]) -> None:
        with self._lock:
            if key in self._known:  # another thread may have forgotten it meanwhile
                self._known.move_to_end(key)

    def _keep(self, key: tuple[bytes, bytes], plan: P) -> None:
        with self._lock:
            if key not in self._known:
                self._bytes += plan.bytes
            self._known[key] = plan
            while self._bytes > CACHE_BYTES and len(self._known) > 1:
                self._bytes -= self._known.popitem(last=False)[1].bytes


product_plan = Plans(lambda a, b: engine().symbolic(a, b))
sum_plan = Plans(union.symbolic)
