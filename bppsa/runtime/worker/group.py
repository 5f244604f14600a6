"""Messages between the ranks of a process group, of torch.distributed.

Large tensors go by a `Carrier`: through shared memory, or over the group. What announces them goes over the connections
of the `Watch`, and small values with it:

    receiver                              sender
    expect:  WANT step, numbers  ->
                                 <-       send: a copy into shared memory, or isend; then DATA step, number, layout, way
    the watch maps it, or posts irecv
    receive: waits for DATA, then for irecv

A tensor is sent when it is wanted and announced when it is sent. So the group never has a send or a receive without a
partner, except where a process died: nobody waits in a collective library for what will never come, nothing of a failed
step is left over for a later one, and a receiver holds no more than it expects. Shapes travel with the announcement: in
full the first time, then as a number.

Tested with gloo. With NCCL the same calls are made; this has not been run for want of two GPUs.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
import traceback
import weakref
import zlib
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa.errors import ScheduleError, WorkerError
from bppsa.runtime.worker.carrier import Carrier, Tensors, Way
from bppsa.runtime.worker.failures import Failures, confidant
from bppsa.runtime.worker.health import Frame, Watch, connect
from bppsa.runtime.worker.layout import Layout, Packed, pack, unpack
from bppsa.schedule.messages import Message

_WANT, _DATA, _SHARE, _JOB, _FAIL, _DIED = range(1, 7)
_DONE = "done"

Key = tuple[int, int]  # step and number of a message


class _Announcement(NamedTuple):
    """Body of a DATA frame. layout: None where the peer knows it by its number; way: of the large tensors."""

    signature: int
    number: int
    layout: Layout | None
    small: bytes
    objects: tuple[Any, ...]
    way: Way


class _Arrival(NamedTuple):
    signature: int
    packed: Packed
    source: int
    way: Way


class _Peer:
    """What was agreed with another rank. The lock keeps sends and their announcements in one order."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lock = threading.Lock()
        self.sent: dict[Layout, int] = {}
        self.received: dict[int, Layout] = {}


class GroupTransport:
    """The `Transport` of one rank, for as long as the group lives. Every rank makes one, in the same order.

    Each step is `begin`, any messages, `finish`, on every rank; `finish` returns when every rank has come to it, so a
    step fails on all ranks or on none. After a failed step comes `begin` of the next. Raises WorkerError from every
    call, also from those that wait, once a rank has failed (until the next `begin`) or died (for good).

    device: where received tensors are put that were not on the CPU. The group is used by nobody else meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu") -> None:
        group = dist.group.WORLD if group is None else group
        if group is None:
            raise WorkerError("there is no process group: call torch.distributed.init_process_group first")
        self._group = group
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self.device = torch.device(device)
        self._wire = self.device if dist.get_backend(self._group) == "nccl" else torch.device("cpu")
        self._carrier = Carrier(self._group, self._wire)
        self._peers = {rank: _Peer(rank) for rank in range(self.size) if rank != self.rank}
        self._step, self._signature = 0, 0
        self._changed = threading.Condition()  # holds for all below
        self._outbox: dict[Key, Packed] = {}  # what nobody wants yet
        self._wanted: set[Key] = set()  # by others, before it was there
        self._asked: set[int] = set()  # by us, in this step
        self._arrived: dict[Key, _Arrival] = {}
        self._pending: dict[Key, list[tuple[dist.Work, Tensors]]] = {}  # transfers, with the tensors they need
        self._shares = 0  # in this step
        self._shared: dict[Key, dict[int, Any]] = {}  # by step and number of the share, by rank
        self._failures = Failures(self._changed, self.rank, self.size)
        self._handlers: dict[int, Callable[[_Peer, Key, bytes], None]] = {
            _WANT: self._on_want,
            _DATA: self._on_data,
            _SHARE: self._on_share,
            _JOB: self._on_job,
            _FAIL: self._on_fail,
            _DIED: self._on_died,
        }
        self._watch = Watch(connect(self._group), self)
        self.close: Callable[[], object] = weakref.finalize(self, _close, self._watch, self._carrier)

    # A step.

    def begin(self, step: int, signature: Hashable = None) -> None:
        """step: from 0, larger than any before; signature: what decides the messages' shapes, equal on all ranks."""
        self._settle()
        with self._changed:
            self._step, self._signature = step, zlib.crc32(repr(signature).encode())
            for key in [key for key in self._arrived if key[0] < step]:
                dropped = self._arrived.pop(key)
                self._carrier.release(dropped.source, dropped.way)
            for table in (self._outbox, self._shared):
                for key in [key for key in table if key[0] < step]:
                    del table[key]
            self._wanted = {key for key in self._wanted if key[0] >= step}
            self._asked.clear()
            self._shares = 0
            self._failures.forget(step)
            self._check()

    def send(self, message: Message, value: Any) -> None:
        key, peer = (self._step, message.number), self._peers[message.target]
        packed = pack(value, self._wire)
        with self._changed:
            self._check()
            if packed.large and key not in self._wanted:
                self._outbox[key] = packed
                return
        self._transmit(peer, key, packed)

    def expect(self, *messages: Message) -> None:
        wanted: dict[int, list[int]] = {}  # a frame for each source: it interrupts a job there
        with self._changed:
            self._check()
            for message in messages:
                if message.number not in self._asked:
                    self._asked.add(message.number)
                    wanted.setdefault(message.source, []).append(message.number)
        for source, numbers in wanted.items():
            self._watch.tell(source, Frame(_WANT, self._step, 0, array("I", numbers).tobytes()))

    def receive(self, message: Message, into: Sequence[Tensor] | None = None) -> Any:
        self.expect(message)
        key = (self._step, message.number)
        with self._changed:
            self._wait(lambda: key in self._arrived)
            arrival = self._arrived.pop(key)
        if arrival.signature != self._signature:
            self._spread(
                f"worker {message.source} and worker {self.rank} run step {self._step} with inputs of different shapes "
                "or dtypes: give every rank the same whole batch"
            )
        self._settle(key)
        with self._carrier.opened(arrival.source, arrival.way, arrival.packed.large, keep=into is None) as large:
            return unpack(replace(arrival.packed, large=large), self.device, into)

    def has(self, message: Message) -> bool:
        """Whether `receive` would not wait."""
        key = (self._step, message.number)
        with self._changed:
            return key in self._arrived and all(work.is_completed() for work, _ in self._pending.get(key, ()))

    def finish(self) -> None:
        """Waits until all that was sent has arrived, and until every rank has come here."""
        self.share(_DONE)
        self._settle()
        if self._outbox:
            numbers = sorted(number for _, number in self._outbox)
            raise WorkerError(f"worker {self.rank}: nobody received the messages {numbers} of step {self._step}")

    # What goes wrong.

    def doing(self, job: str) -> None:
        """Says which job runs here from now on: the others name it should this process be killed."""
        if self.size > 1:
            self._watch.tell(confidant(self.rank, self.size), Frame(_JOB, 0, 0, job.encode()))

    def fail(self, job: str, error: BaseException) -> None:
        """Tells every rank that `job` raised `error` here: all their calls of this step raise WorkerError."""
        trace = "".join(traceback.format_exception(error))
        summary = "".join(traceback.format_exception_only(error)).strip()
        with contextlib.suppress(WorkerError):
            self._spread(f"worker {self.rank} failed in {job}: {summary}\n\nIts traceback:\n{trace}")

    def agree(self, fingerprint: object) -> None:
        """Raises ScheduleError on every rank where the fingerprints differ, with the keys that do of a dict."""
        given = self.share(fingerprint)
        tables = {rank: _keyed(given[rank]) for rank in range(self.size)}
        keys = dict.fromkeys(key for table in tables.values() for key in table)
        differences = [text for key in keys if (text := _difference(key, tables))]
        if differences:
            raise ScheduleError("the ranks were given different work; " + "; ".join(differences))

    # The thread of the watch.

    def heard(self, peer: int, frame: Frame) -> None:
        self._handlers[frame.kind](self._peers[peer], (frame.step, frame.number), frame.body)

    def lost(self, peer: int, left: bool) -> None:
        with self._changed:
            if left:
                self._failures.left(peer)
            text = None if left else self._failures.closed(peer)
        if text is not None:
            self._watch.tell_all(Frame(_DIED, 0, peer, text.encode()))

    def _on_want(self, peer: _Peer, key: Key, body: bytes) -> None:
        for number in array("I", body):
            wanted = (key[0], number)
            with self._changed:
                waiting = self._outbox.pop(wanted, None)
                if waiting is None:
                    self._wanted.add(wanted)
            if waiting is not None:
                self._transmit(peer, wanted, waiting)

    def _on_data(self, peer: _Peer, key: Key, body: bytes) -> None:
        announced: _Announcement = pickle.loads(body)
        if announced.layout is not None:
            peer.received[announced.number] = announced.layout
        layout = peer.received[announced.number]
        large, works = self._carrier.receive(peer.rank, announced.way, layout.sizes)
        packed = Packed(layout, announced.small, large, announced.objects)
        with self._changed:
            self._pending[key] = [(work, large) for work in works]
            self._arrived[key] = _Arrival(announced.signature, packed, peer.rank, announced.way)
            self._changed.notify_all()

    def _on_fail(self, peer: _Peer, key: Key, body: bytes) -> None:
        with self._changed:
            self._failures.failed(key[0], body.decode())

    def _on_died(self, peer: _Peer, key: Key, body: bytes) -> None:
        with self._changed:
            self._failures.died(key[1], body.decode())

    def _on_job(self, peer: _Peer, key: Key, body: bytes) -> None:
        with self._changed:
            self._failures.doing(peer.rank, body.decode())

    def _on_share(self, peer: _Peer, key: Key, body: bytes) -> None:
        value = pickle.loads(body)
        with self._changed:
            self._shared.setdefault(key, {})[peer.rank] = value
            if value == _DONE:
                self._failures.finished(peer.rank, key[0])
            self._changed.notify_all()

    # Common to both.

    def _transmit(self, peer: _Peer, key: Key, packed: Packed) -> None:
        with peer.lock:
            number = peer.sent.get(packed.layout, -1)
            layout = packed.layout if number < 0 else None
            if number < 0:
                number = peer.sent[packed.layout] = len(peer.sent)
            way, works = self._carrier.send(peer.rank, packed.large)
            announcement = _Announcement(self._signature, number, layout, packed.small, packed.objects, way)
            self._watch.tell(peer.rank, Frame(_DATA, *key, pickle.dumps(announcement)))
        with self._changed:
            self._pending[key] = [(work, packed.large) for work in works]

    def share(self, value: Any) -> dict[int, Any]:
        """The values of all ranks, by rank."""
        with self._changed:
            key, self._shares = (self._step, self._shares), self._shares + 1
        self._watch.tell_all(Frame(_SHARE, *key, pickle.dumps(value)))
        with self._changed:
            self._wait(lambda: len(self._shared.get(key, ())) == self.size - 1)
            return {**self._shared.pop(key, {}), self.rank: value}

    def _spread(self, text: str) -> NoReturn:
        """Fails this step on every rank, unless it has failed already."""
        with self._changed:
            self._check()
            self._failures.failed(self._step, text)
        self._watch.tell_all(Frame(_FAIL, self._step, 0, text.encode()))
        raise WorkerError(text)

    def _check(self) -> None:
        """The lock is held."""
        self._failures.check(self._step)

    def _wait(self, is_there: Callable[[], bool], timeout: float | None = None) -> None:
        """Until it is there, or something has failed. The lock is held."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not is_there() and time.monotonic() < end:
            self._check()
            self._changed.wait(timeout)

    def _settle(self, key: Key | None = None) -> None:
        """Waits for the transfers of a message, or for all. Each has a partner, so it fails only where that died."""
        with self._changed:
            pending = [self._pending.pop(key, [])] if key else [self._pending.pop(key) for key in list(self._pending)]
        for work, _ in (transfer for transfers in pending for transfer in transfers):
            try:
                work.wait()
            except RuntimeError as broken:
                with self._changed:
                    self._wait(lambda: False, timeout=2)
                raise WorkerError(f"worker {self.rank}: the process group failed: {broken}") from broken


def _close(watch: Watch, carrier: Carrier) -> None:
    watch.close()
    carrier.close()


def _keyed(fingerprint: object) -> dict:
    return fingerprint if isinstance(fingerprint, dict) else {"fingerprint": fingerprint}


def _difference(key: object, tables: dict[int, dict]) -> str:
    """Who has which value for the key; "" where all have the same."""
    ranks: dict[str, list[str]] = {}
    for rank, table in tables.items():
        ranks.setdefault(repr(table[key]) if key in table else "nothing", []).append(str(rank))
    if len(ranks) == 1:
        return ""
    return f"{key}: " + ", ".join(f"{value} on worker {' and '.join(having)}" for value, having in ranks.items())
