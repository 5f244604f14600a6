"""Messages between the ranks of a process group.

Large tensors go over the group, by a `Carrier`. Letters announce them over the connections of a `Watch`, and hold small
values themselves, and between ranks of one machine the large ones too:

    receiver                              sender
    expect:  WANT step, numbers  ->
                                 <-       send: DATA step, number, letter
    carrier: irecv               <-       carrier: isend
    receive: waits for the carrier

A large tensor is sent when it is wanted and announced when it is sent. So the group never has a send or a receive
without a partner, except where a process died; nothing of a failed step is left over for a later one, and a receiver
holds no more than it expects.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bppsa.errors import ScheduleError, WorkerError
from bppsa.runtime.transport.carrier import Carrier
from bppsa.runtime.transport.connections import connect
from bppsa.runtime.transport.differences import Signatures, differences
from bppsa.runtime.transport.failures import Failures, confidant
from bppsa.runtime.transport.frames import Bytes, Frame
from bppsa.runtime.transport.headers import Peer
from bppsa.runtime.transport.layout import PackedMessage, pack, unpack
from bppsa.runtime.transport.table import MessageKey, Table
from bppsa.runtime.transport.watch import Watch
from bppsa.schedule.programs.messages import Message

_WANT, _DATA, _SIGN, _GATHER, _JOB, _FAIL, _GONE = range(1, 8)
_DONE = "done"


class GroupTransport:
    """The `Transport` of one rank, for as long as the group lives. Every rank makes one, in the same order.

    Each step is `begin`, `sign`, any messages, `finish`, on every rank; `finish` returns when every rank has come to
    it, so a step fails on all ranks or on none. After a failed step comes `begin` of the next. Raises WorkerError from
    every call, also from those that wait, once a rank has failed (until the next `begin`) or died (for good).

    device: where received tensors are put that were not on the CPU. The group is used by nobody else meanwhile.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        group = dist.group.WORLD
        if group is None:
            raise WorkerError("there is no process group: call torch.distributed.init_process_group first")
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = torch.device(device)
        self._wire = self.device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        connections = connect(group)
        self._peers = {rank: Peer(rank, self._wire, connections.near(rank)) for rank in connections.lines}
        self._step = 0
        self._changed = threading.Condition()  # holds for all below
        self._table = Table()
        self._gatherings = 0  # in this step
        self._gathered: dict[MessageKey, dict[int, Any]] = {}  # by step and number of the gathering, by rank
        self._signatures = Signatures()
        self._failures = Failures(self._changed, self.rank, self.size)
        self._carrier = Carrier(group, self._wire)
        self._watch = Watch(connections.lines, connections.words, self)
        # Not weakref.finalize, which a process of multiprocessing leaves out at its end: it would end without goodbye.
        self.close: Callable[[], object] = Finalize(self, _close, (self._watch, self._carrier), exitpriority=0)
        self._meet()

    # A step.

    def begin(self, step: int) -> None:
        """step: from 1, larger than any before."""
        with self._changed:
            self._step, self._gatherings = step, 0
            self._table.begin(step)
            self._gathered = {key: values for key, values in self._gathered.items() if key[0] >= step}
            self._signatures.begin(step)
            self._failures.forget(step)
            self._failures.check(step)

    def sign(self, signature: Mapping[str, str]) -> None:
        """What has to be equal on all ranks for this step; where it is not, the step fails and says what differs."""
        pickled = pickle.dumps(dict(signature))
        self._watch.tell_all(Frame(_SIGN, self._step, 0, pickled))
        with self._changed:
            self._signed(self._step, self.rank, pickled)
            self._failures.check(self._step)

    def send(self, message: Message, value: Any) -> None:
        key, packed = (self._step, message.number), pack(value, self._wire)
        with self._changed:
            self._failures.check(self._step)
            due = self._table.offer(key, packed)
        if due:
            self._transmit(self._peers[message.target], key, packed)

    def expect(self, *messages: Message) -> None:
        wanted: dict[int, list[int]] = {}  # a frame for each source: it interrupts a job there
        with self._changed:
            self._failures.check(self._step)
            for message in messages:
                if self._table.ask((self._step, message.number)):
                    wanted.setdefault(message.source, []).append(message.number)
        for source, numbers in wanted.items():
            self._watch.tell(source, Frame(_WANT, self._step, 0, array("I", numbers).tobytes()))

    def receive(self, message: Message, into: Sequence[Tensor] | None = None) -> Any:
        self.expect(message)
        key = (self._step, message.number)
        with self._changed:
            self._wait(lambda: set() if key in self._table.arrived else {message.source})
            packed = self._table.arrived.pop(key)
        return unpack(packed, self.device, into)

    def has(self, message: Message) -> bool:
        """Whether `receive` would not wait."""
        with self._changed:
            return (self._step, message.number) in self._table.arrived

    def finish(self) -> None:
        """Waits until every rank has come here, and so has received what was sent to it."""
        self.all_gather(_DONE)
        with self._changed:
            self._failures.check(self._step)  # as signatures tell, which have come before
        if self._table.outbox:
            numbers = sorted(number for _, number in self._table.outbox)
            raise WorkerError(f"worker {self.rank}: nobody received the messages {numbers} of step {self._step}")

    def all_gather(self, value: Any) -> dict[int, Any]:
        """The values of all ranks, by rank."""
        with self._changed:
            key, self._gatherings = (self._step, self._gatherings), self._gatherings + 1
        self._watch.tell_all(Frame(_GATHER, *key, pickle.dumps(value)))
        with self._changed:
            self._wait(lambda: self._peers.keys() - self._gathered.get(key, {}).keys())
            return {**self._gathered.pop(key, {}), self.rank: value}

    def agree(self, fingerprint: Mapping[str, object]) -> None:
        """Raises ScheduleError on every rank where the fingerprints differ, with the keys that do."""
        differing = differences(self.all_gather(dict(fingerprint)))
        self.all_gather(_DONE)  # or who raises first, and goes, would be missed by those that wait for others
        if differing:
            raise ScheduleError(f"the ranks were given different work; {differing}")

    # What goes wrong.

    def doing(self, job: str) -> None:
        """Says which job runs here from now on: the others name it should this process be killed."""
        if self.size > 1:
            self._watch.mention(confidant(self.rank, self.size), Frame(_JOB, self._step, 0, job.encode()))

    def fail(self, job: str, error: BaseException) -> None:
        """Tells every rank that `job` raised `error` here, unless the step has failed already: all their calls of this
        step raise WorkerError."""
        trace = "".join(traceback.format_exception(error))
        summary = "".join(traceback.format_exception_only(error)).strip()
        text = f"worker {self.rank} failed in {job}: {summary}\n\nIts traceback:\n{trace}"
        with self._changed:
            known = self._failures.known(self._step)
            self._failures.failed(self._step, text)
        if not known:
            self._watch.tell_all(Frame(_FAIL, self._step, 0, text.encode()))

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """What is raised within is told to every rank."""
        try:
            yield
        except BaseException as error:
            self.fail(what, error)
            raise

    # The thread of the watch.

    def heard(self, peer: int, frame: Frame) -> None:
        _HANDLERS[frame.kind](self, self._peers[peer], (frame.step, frame.number), frame.body)

    def lost(self, peer: int, left: bool) -> None:
        with self._changed:
            if left:
                self._failures.left(peer)
            text = None if left else self._failures.closed(peer)
        if text is not None:
            self._watch.tell_all(Frame(_GONE, 0, peer, text.encode()))

    def broken(self, error: BaseException) -> None:
        summary = "".join(traceback.format_exception_only(error)).strip()
        self._give_up(f"worker {self.rank} hears no messages any more: {summary}")

    def _on_want(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        for number in array("I", body):
            wanted = (key[0], number)
            with self._changed:
                packed = self._table.want(wanted)
            if packed is not None:
                self._transmit(peer, wanted, packed)

    def _on_data(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        packed, tag = peer.reader.read(body)
        ended = partial(self._arrived, key, packed)
        if tag is not None and packed.large:
            self._carrier.receive(peer.rank, packed.large, tag, ended, partial(self._lost_group, peer.rank))
        else:
            ended()

    def _on_sign(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        with self._changed:
            self._signed(key[0], peer.rank, bytes(body))

    def _on_gather(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        value = pickle.loads(body)
        with self._changed:
            self._gathered.setdefault(key, {})[peer.rank] = value
            if value == _DONE:
                self._failures.finished(peer.rank, key[0])
            self._changed.notify_all()

    def _on_job(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        with self._changed:
            self._failures.doing(peer.rank, key[0], bytes(body).decode())

    def _on_fail(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        with self._changed:
            self._failures.failed(key[0], bytes(body).decode())

    def _on_gone(self, peer: Peer, key: MessageKey, body: Bytes) -> None:
        with self._changed:
            self._failures.gone(key[1], bytes(body).decode())

    # Common to all threads.

    def _meet(self) -> None:
        """Has the group connect all ranks, while nobody depends on its first calls."""
        unmet = {peer: 2 for peer in self._peers}  # directions

        def met(peer: int) -> None:
            with self._changed:
                unmet[peer] -= 1
                self._changed.notify_all()

        for peer in self._peers:
            self._carrier.meet(peer, partial(met, peer), partial(self._lost_group, peer))
        with self._changed:
            self._wait(lambda: {peer for peer, directions in unmet.items() if directions})

    def _transmit(self, peer: Peer, key: MessageKey, packed: PackedMessage) -> None:
        with peer.lock:
            letter, tag = peer.writer.write(packed, whole=peer.near and packed.fits)
            self._watch.tell(peer.rank, Frame(_DATA, *key, letter, packed.pieces if tag is None else packed.small))
            if tag is not None and packed.large:
                self._carrier.send(peer.rank, packed.large, tag, partial(self._lost_group, peer.rank))

    def _arrived(self, key: MessageKey, packed: PackedMessage) -> None:
        with self._changed:
            if key[0] >= self._step:
                self._table.arrived[key] = packed
            self._changed.notify_all()

    def _signed(self, step: int, rank: int, signature: bytes) -> None:
        if differing := self._signatures.add(step, rank, signature):
            self._failures.failed(step, f"the ranks run step {step} on different work; {differing}")

    def _lost_group(self, peer: int, error: RuntimeError) -> None:
        """Called in a thread of the carrier. Where the peer is gone, its closed connection says more."""
        with self._changed:
            if self._failures.gone_soon(peer):
                return
        self._give_up(f"worker {self.rank} lost the process group: {error}")

    def _give_up(self, text: str) -> None:
        with self._changed:
            self._failures.gone(self.rank, text)
        self._watch.tell_all(Frame(_GONE, 0, self.rank, text.encode()))

    def _wait(self, missing: Callable[[], Set[int]]) -> None:
        """Until nothing is missing, or something has failed. missing: from whom something is. The lock is held."""
        while sources := missing():
            self._failures.check(self._step, sources)
            self._changed.wait()


# Not bound to a transport: one that held them would be in a reference cycle, and not closed when it is let go.
_HANDLERS: dict[int, Callable[[GroupTransport, Peer, MessageKey, Bytes], None]] = {
    _WANT: GroupTransport._on_want,
    _DATA: GroupTransport._on_data,
    _SIGN: GroupTransport._on_sign,
    _GATHER: GroupTransport._on_gather,
    _JOB: GroupTransport._on_job,
    _FAIL: GroupTransport._on_fail,
    _GONE: GroupTransport._on_gone,
}


def _close(watch: Watch, carrier: Carrier) -> None:
    watch.close()
    carrier.close()
