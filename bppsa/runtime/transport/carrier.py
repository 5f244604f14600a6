"""Large tensors on their way between ranks, over a process group of torch.distributed.

Waiting for a transfer may take for ever where the partner is killed: gloo fails some of the transfers of a closed
connection, and leaves others to the group's timeout. So daemon threads do that, one for each peer and direction: they
say when a transfer has ended, and whoever needs it watches for failures meanwhile. The first call for a peer may wait
too, until the partner connects; these threads make it, in `meet`, before any other.

Tested with gloo. With NCCL the same calls are made, on a group for each direction, because two ranks' unmatched sends
to each other would wait for each other; this has been run with one rank only, for want of two GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_MOMENT = 1.0  # seconds
TAGS = 1 << 30  # those from 0 are for transfers
Post = Callable[[list[Tensor], int, int], dist.Work]  # of tensors, peer and tag
Ended = Callable[[], None]
Failed = Callable[[RuntimeError], None]


class _Transfer(NamedTuple):
    """tensors: kept until it has ended."""

    works: Callable[[], Sequence[dist.Work]]
    tensors: Sequence[Tensor]
    ended: Ended
    failed: Failed


class Carrier:
    """Both ends give the tensors of a transfer the same tags, from `tag` on, and begin the transfers of a direction in
    the same order.

    wire: the device that tensors are on. Either `ended` or `failed` is called for each transfer, by a thread.
    """

    def __init__(self, group: dist.ProcessGroup, wire: torch.device) -> None:
        self._rank, self._wire = dist.get_rank(group), wire
        self._upward = group
        self._downward = group if wire.type == "cpu" else _twin(group)
        self._lock = threading.Lock()
        self._queues: dict[tuple[int, bool], SimpleQueue[_Transfer | None]] = {}
        self._threads: list[threading.Thread] = []

    def send(self, target: int, tensors: Sequence[Tensor], tag: int, failed: Failed) -> None:
        works = _posted(self._group(target, True).send, target, tensors, tag)
        self._queue(target, True).put(_Transfer(works, tensors, lambda: None, failed))

    def receive(self, source: int, tensors: Sequence[Tensor], tag: int, ended: Ended, failed: Failed) -> None:
        works = _posted(self._group(source, False).recv, source, tensors, tag)
        self._queue(source, False).put(_Transfer(works, tensors, ended, failed))

    def meet(self, peer: int, ended: Ended, failed: Failed) -> None:
        """Has the group connect to a peer, in both directions. ended: called for each of the two."""
        for sends in (True, False):
            token, group = torch.zeros(1, dtype=torch.uint8, device=self._wire), self._group(peer, sends)
            works = partial(_post, group.send if sends else group.recv, peer, [token], TAGS)
            self._queue(peer, sends).put(_Transfer(works, [token], ended, failed))

    def close(self) -> None:
        """Lets the threads end that do not wait in the group; others get a moment to see that it has failed: who comes
        back from it while the interpreter shuts down aborts the process."""
        with self._lock:
            for queue in self._queues.values():
                queue.put(None)
        end = time.monotonic() + _MOMENT
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _group(self, peer: int, sends: bool) -> dist.ProcessGroup:
        return self._upward if (peer > self._rank) == sends else self._downward

    def _queue(self, peer: int, sends: bool) -> SimpleQueue[_Transfer | None]:
        with self._lock:
            if (peer, sends) not in self._queues:
                self._queues[peer, sends] = queue = SimpleQueue[_Transfer | None]()
                name = f"bppsa-{'to' if sends else 'from'}-{peer}"
                self._threads.append(threading.Thread(target=_carry, args=(queue,), name=name, daemon=True))
                self._threads[-1].start()
            return self._queues[peer, sends]


def _carry(queue: SimpleQueue[_Transfer | None]) -> None:
    while (transfer := queue.get()) is not None:
        try:
            _wait(transfer)
        except RuntimeError as error:
            transfer.failed(error)
        else:
            transfer.ended()
        del transfer  # or its tensors would live on until the next one


def _wait(transfer: _Transfer) -> None:
    for work in transfer.works():
        work.wait()
    if transfer.tensors[0].is_cuda:  # where waiting only has this thread's stream wait
        torch.cuda.current_stream(transfer.tensors[0].device).synchronize()


def _post(post: Post, peer: int, tensors: Sequence[Tensor], tag: int) -> Sequence[dist.Work]:
    return [post([tensor], peer, tag + i) for i, tensor in enumerate(tensors)]


def _posted(post: Post, peer: int, tensors: Sequence[Tensor], tag: int) -> Callable[[], Sequence[dist.Work]]:
    """What raises here, as the group knows already that the peer is gone, is raised in the thread that waits."""
    try:
        works = _post(post, peer, tensors, tag)
    except RuntimeError:
        return partial(_post, post, peer, tensors, tag)
    return lambda: works


def _twin(group: dist.ProcessGroup) -> dist.ProcessGroup:
    ranks = dist.get_process_group_ranks(group)
    twin = dist.new_group(ranks, backend=dist.get_backend(group), use_local_synchronization=True)
    assert isinstance(twin, dist.ProcessGroup)
    return twin
