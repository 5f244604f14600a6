"""Large tensors on their way between ranks, over a process group of torch.distributed.

A call of a process group may wait for ever where the partner is killed: gloo fails some of the transfers of a closed
connection, and leaves others to the group's timeout. A first call may also wait for the partner to connect. So all such
calls are made by daemon threads that nobody waits for, one for each peer and direction: they say when a transfer has
ended, and whoever needs it watches for failures meanwhile.

Tested with gloo. With NCCL the same calls are made, on a group for each direction, because two ranks' unmatched sends
to each other would wait for each other; this has not been run for want of two GPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

Ended = Callable[[], None]
Failed = Callable[[RuntimeError], None]


class _Transfer(NamedTuple):
    post: Callable[[list[Tensor], int, int], dist.Work]  # of tensors, peer and tag
    peer: int
    tensors: Sequence[Tensor]
    tag: int  # of the first tensor; the next ones follow
    ended: Ended
    failed: Failed


class Carrier:
    """Both ends give the tensors of a transfer the same tags, and name the transfers of a direction in one order.

    wire: the device that tensors are on. Either `ended` or `failed` is called for each transfer, by the thread.
    """

    def __init__(self, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._rank = dist.get_rank(group)
        self._upward = group
        self._downward = group if wire.type == "cpu" else _twin(group)
        self._lock = threading.Lock()
        self._queues: dict[tuple[int, bool], SimpleQueue[_Transfer | None]] = {}

    def send(self, target: int, tensors: Sequence[Tensor], tag: int, failed: Failed) -> None:
        group = self._upward if target > self._rank else self._downward
        self._queue(target, True).put(_Transfer(group.send, target, tensors, tag, lambda: None, failed))

    def receive(self, source: int, tensors: Sequence[Tensor], tag: int, ended: Ended, failed: Failed) -> None:
        group = self._upward if source < self._rank else self._downward
        self._queue(source, False).put(_Transfer(group.recv, source, tensors, tag, ended, failed))

    def close(self) -> None:
        """Lets the threads end that do not wait in the group."""
        with self._lock:
            for queue in self._queues.values():
                queue.put(None)

    def _queue(self, peer: int, sends: bool) -> SimpleQueue[_Transfer | None]:
        with self._lock:
            if (peer, sends) not in self._queues:
                self._queues[peer, sends] = queue = SimpleQueue[_Transfer | None]()
                name = f"bppsa-{'to' if sends else 'from'}-{peer}"
                threading.Thread(target=_carry, args=(queue,), name=name, daemon=True).start()
            return self._queues[peer, sends]


def _carry(queue: SimpleQueue[_Transfer | None]) -> None:
    while (transfer := queue.get()) is not None:
        try:
            _transfer(transfer)
        except RuntimeError as error:
            transfer.failed(error)
        else:
            transfer.ended()
        del transfer  # or its tensors would live on until the next one


def _transfer(transfer: _Transfer) -> None:
    works = [transfer.post([x], transfer.peer, transfer.tag + i) for i, x in enumerate(transfer.tensors)]
    for work in works:
        work.wait()
    if transfer.tensors[0].is_cuda:  # where waiting only has this thread's stream wait
        torch.cuda.current_stream(transfer.tensors[0].device).synchronize()


def _twin(group: dist.ProcessGroup) -> dist.ProcessGroup:
    ranks = dist.get_process_group_ranks(group)
    twin = dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)
    assert isinstance(twin, dist.ProcessGroup)
    return twin
