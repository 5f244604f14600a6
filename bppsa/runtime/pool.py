"""Work memory that is used again: a step's large buffers serve the next step, which then faults in no fresh pages.

`take` gives a flat tensor. Its bytes return to the pool when the last tensor on them dies (a view, what autograd saved,
what a hook or the user holds), because the tensor's storage owns the loan: there is nothing to release by hand and no
way to get bytes that are still in use. Not for outputs of a model: such a storage cannot be resized.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

import numpy
import torch

from bppsa.common.process.forks import renewed_in_children

SMALLEST = 64 << 10  # bytes; below, the allocator is as fast and reuses its pages itself
LARGEST_IDLE = 256 << 20  # bytes that may wait for the next step
CPU = torch.device("cpu")


class _Loan(numpy.ndarray):
    """The bytes of one `take`. A tensor's storage holds it; when that lets go, the bytes return to their pool."""

    __slots__ = ("block", "pool")
    block: numpy.ndarray
    pool: Pool

    def __del__(self) -> None:
        self.pool._give_back(self.block)


class Pool:
    """Idle blocks of bytes by size. Nothing here ever waits for a lock.

    A loan may end anywhere: in another thread, or inside this very code when the garbage collector runs. It only joins
    `_returned`; whoever gets the lock puts what is there on the shelves. A `take` that does not get the lock allocates.
    """

    def __init__(self, largest_idle: int = LARGEST_IDLE) -> None:
        self.largest_idle = largest_idle
        self.idle = 0  # bytes on the shelves
        self._shelves: OrderedDict[int, list[numpy.ndarray]] = OrderedDict()  # by size, least recently used size first
        self._returned: deque[numpy.ndarray] = deque()
        self.renew_lock()
        renewed_in_children(self)

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """[numel], contents undefined, on a CPU, 64-byte aligned."""
        needed = numel * dtype.itemsize
        if needed < SMALLEST:
            return torch.empty(numel, dtype=dtype, device=CPU)
        size = size_class(needed)
        block = self._pop(size)
        if block is None:
            block = torch.empty(size, dtype=torch.uint8, device=CPU).numpy()
        loan = block.view(_Loan)
        loan.pool, loan.block = self, block
        return torch.frombuffer(loan, dtype=dtype, count=numel)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _pop(self, size: int) -> numpy.ndarray | None:
        if not self._lock.acquire(False):
            return None
        try:
            blocks = self._shelves.get(size)
            if not blocks:
                return None
            self.idle -= size
            return blocks.pop()
        finally:
            self._lock.release()
            if self._returned:
                self._settle()

    def _give_back(self, block: numpy.ndarray) -> None:
        self._returned.append(block)
        self._settle()

    def _settle(self) -> None:
        """Called after every append and every release, so that no block is left over that joined meanwhile."""
        while self._returned and self._lock.acquire(False):
            try:
                self._shelve()
            finally:
                self._lock.release()

    def _shelve(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            size = block.nbytes
            self._shelves.setdefault(size, []).append(block)
            self._shelves.move_to_end(size)
            self.idle += size
        while self.idle > self.largest_idle:
            size, blocks = next(iter(self._shelves.items()))
            if blocks:
                blocks.pop()
                self.idle -= size
            else:
                del self._shelves[size]


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to quarter steps between powers of two: at most 25 % more, of pages that nobody touches."""
    step = 1 << max(nbytes.bit_length() - 3, 0)
    return -(-nbytes // step) * step


_pool = Pool()
take = _pool.take
