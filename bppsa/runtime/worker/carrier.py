"""How large tensors go from rank to rank: through shared memory where both have it, else over the process group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa.runtime.worker.shared import Place, meet

_TAGS = 1 << 30

Way = tuple[Place, ...] | int  # of a message's large tensors: where they are, or with which tag the first one comes
Tensors = tuple[Tensor, ...]


class Carrier:
    """Of one rank. Every rank makes one, in the same order. Tensors are uint8 [N], on `wire`.

    With NCCL there is a group for each direction, because two ranks' unmatched sends to each other would wait for each
    other.
    """

    def __init__(self, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._rank, self._wire, self._upward = dist.get_rank(group), wire, group
        self._downward = group if wire.type == "cpu" else _twin(group)
        self._tags: Counter[int] = Counter()  # of the next tensor to a peer
        self._memory = meet(group, wire)

    def send(self, peer: int, large: Tensors) -> tuple[Way, list[dist.Work]]:
        """To one peer, a message at a time. The way is for its `receive`."""
        if peer in self._memory.readers:
            return tuple(map(self._memory.outgoing.put, large)), []
        tag, self._tags[peer] = self._tags[peer], (self._tags[peer] + len(large)) % _TAGS
        group = self._upward if peer > self._rank else self._downward
        return tag, [group.send([tensor], peer, tag + index) for index, tensor in enumerate(large)]

    def receive(self, peer: int, way: Way, sizes: Sequence[int]) -> tuple[Tensors, list[dist.Work]]:
        """The tensors, which hold the message when the work is done; of shared memory until `release`."""
        if isinstance(way, tuple):
            return tuple(map(self._memory.incoming[peer].view, way)), []
        large = tuple(torch.empty(size, dtype=torch.uint8, device=self._wire) for size in sizes)
        group = self._upward if peer < self._rank else self._downward
        return large, [group.recv([tensor], peer, way + index) for index, tensor in enumerate(large)]

    @contextmanager
    def opened(self, peer: int, way: Way, large: Tensors, keep: bool) -> Iterator[Tensors]:
        """The tensors within the block; keep: also after it."""
        try:
            yield tuple(map(torch.clone, large)) if keep and isinstance(way, tuple) else large
        finally:
            self.release(peer, way)

    def release(self, peer: int, way: Way) -> None:
        for place in way if isinstance(way, tuple) else ():
            self._memory.incoming[peer].give_back(place)

    def close(self) -> None:
        self._memory.outgoing.close()


def _twin(group: dist.ProcessGroup) -> dist.ProcessGroup:
    ranks = dist.get_process_group_ranks(group)
    twin = dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)
    assert isinstance(twin, dist.ProcessGroup)
    return twin
