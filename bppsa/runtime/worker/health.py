"""Connections from every worker to every other: small frames, and the news that a worker is gone.

A killed process closes its connections at once, whoever hosts the store and whatever its threads were doing; so nothing
has to beat, and a job may take minutes. The thread sleeps in `select` between frames.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import deque
from typing import NamedTuple, Protocol

import torch.distributed as dist

_HEAD = struct.Struct("<BIII")  # kind, step, number, bytes of the body
_HELLO = struct.Struct("<I16s")  # rank and token of the one who connects
_BYE = 0  # kind of the frame that announces a closed connection; other kinds are the listener's
_CHUNK = 1 << 18
# A host that vanishes without closing its connections is noticed after 3 s + 3 * 1.5 s of silence.
_KEEP_ALIVE = (("SO_KEEPALIVE", 1), ("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4))


class Frame(NamedTuple):
    kind: int  # 1 to 255
    step: int
    number: int
    body: bytes = b""


class Listener(Protocol):
    """Called by the thread of the watch, one call at a time."""

    def heard(self, peer: int, frame: Frame) -> None: ...

    def lost(self, peer: int, left: bool) -> None:
        """The connection is closed; left: the peer said so before."""


class _Line:
    """The connection to one peer: what is still to be written, and what was read of an unfinished frame."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.connection = connection
        self.lock = threading.Lock()  # of `unsent`; it also keeps frames in order
        self.unsent: deque[memoryview] = deque()
        self.unread = bytearray()
        self.left = False
        self.is_open = True

    def write(self) -> bool:
        """Writes what the connection takes now. Whether something is left; the lock is held."""
        while self.unsent:
            try:
                sent = self.connection.send(self.unsent[0])
            except BlockingIOError:
                return True
            except OSError:  # closed by the peer, as the reading side finds out
                self.unsent.clear()
                return False
            if sent == len(self.unsent[0]):
                self.unsent.popleft()
            else:
                self.unsent[0] = self.unsent[0][sent:]
        return False

    def close(self) -> None:
        with self.lock:
            self.is_open = False
            self.unsent.clear()
            self.connection.close()

    def read(self) -> bool:
        """Reads what is there. Whether the connection is open."""
        try:
            data = self.connection.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.unread += data
        return bool(data)

    def frames(self) -> list[Frame]:
        found, at = [], 0
        while len(self.unread) - at >= _HEAD.size:
            kind, step, number, size = _HEAD.unpack_from(self.unread, at)
            if len(self.unread) - at - _HEAD.size < size:
                break
            at += _HEAD.size + size
            found.append(Frame(kind, step, number, bytes(self.unread[at - size : at])))
        del self.unread[:at]
        return found


_WATCHES: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """The connections of one rank, and the thread that reads them. `tell` never blocks.

    connections: by peer, as `connect` makes them. The listener is held weakly.
    """

    def __init__(self, connections: dict[int, socket.socket], listener: Listener) -> None:
        self._lines = {peer: _Line(peer, connection) for peer, connection in connections.items()}
        self._listener = weakref.ref(listener)
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._bell = socket.socketpair()
        for end in (self._woken, self._bell):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for line in self._lines.values():
            self._selector.register(line.connection, selectors.EVENT_READ, line)
        self._thread = threading.Thread(target=self._run, name="bppsa-watch", daemon=True)
        _WATCHES.add(self)
        self._thread.start()

    def tell(self, peer: int, frame: Frame) -> None:
        line = self._lines[peer]
        with line.lock:
            waiting = bool(line.unsent)
            head = _HEAD.pack(frame.kind, frame.step, frame.number, len(frame.body))
            line.unsent.append(memoryview(head + frame.body))
            if not waiting and line.write():
                self._ring()

    def tell_all(self, frame: Frame) -> None:
        for peer in self._lines:
            self.tell(peer, frame)

    def close(self) -> None:
        """Says goodbye and ends the thread. What was told before still goes out, for a second at most."""
        if self._closing:
            return
        self.tell_all(Frame(_BYE, 0, 0))
        self._closing = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2)

    def forget(self) -> None:
        """In a forked child: closes its copies, or a killed parent would seem to live on."""
        for line in self._lines.values():
            line.connection.close()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def _run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select():
                if key.data is None:
                    self._drain_bell()
                elif events & selectors.EVENT_READ:
                    self._hear(key.data)
            self._write()
        self._end()

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _hear(self, line: _Line) -> None:
        is_open = line.read()
        listener = self._listener()
        for frame in line.frames():
            if frame.kind == _BYE:
                line.left, is_open = True, False
            elif listener is not None:
                listener.heard(line.peer, frame)
        if not is_open:
            self._selector.unregister(line.connection)
            line.close()
            if listener is not None:
                listener.lost(line.peer, line.left)

    def _write(self) -> None:
        """Writes on, and asks to be woken by the lines that are full."""
        for line in self._lines.values():
            with line.lock:
                full = bool(line.unsent) and line.write()
            if line.is_open:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
                if self._selector.get_key(line.connection).events != events:
                    self._selector.modify(line.connection, events, line)

    def _end(self) -> None:
        """Waits for the peers to close their ends: a connection that is closed with something unread in it is reset,
        and the peer would lose what it had not read."""
        limit = time.monotonic() + 1
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.connection.settimeout(max(0.01, limit - time.monotonic()))
                with line.lock:
                    line.write()
                while line.connection.recv(_CHUNK):
                    pass
            line.close()
        self._selector.close()
        self._woken.close()
        self._bell.close()


def _forget_all() -> None:
    for watch in _WATCHES:
        watch.forget()


os.register_at_fork(after_in_child=_forget_all)


def connect(group: dist.ProcessGroup) -> dict[int, socket.socket]:
    """A connection to each other rank of the group, by rank. Every rank calls it.

    Ports and tokens are exchanged over the group; whoever does not know the token of a rank is not let in.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    machine = (socket.gethostname(), _boot())
    machines = _exchange(machine, group)
    host = "127.0.0.1" if set(machines) == {machine} else ""
    token = secrets.token_bytes(16)
    connections: dict[int, socket.socket] = {}
    with socket.create_server((host, 0), backlog=size) as server:
        places = _exchange((_addresses(), server.getsockname()[1], token), group)
        for peer in range(rank):
            addresses, port, its_token = places[peer]
            addresses = ["127.0.0.1"] if machines[peer] == machine else addresses
            connections[peer] = _reach(addresses, port)
            connections[peer].sendall(_HELLO.pack(rank, its_token))
        while len(connections) < size - 1:
            connection, _ = server.accept()
            connection.settimeout(10)
            with contextlib.suppress(OSError, struct.error):
                peer, its_token = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
                if hmac.compare_digest(its_token, token) and peer > rank:
                    connections[peer] = connection
    for connection in connections.values():
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEP_ALIVE:
            level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
            if hasattr(socket, name):
                connection.setsockopt(level, getattr(socket, name), value)
    return connections


def _exchange(mine: object, group: dist.ProcessGroup) -> list:
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _boot() -> str:
    """Tells machines of one name apart."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except OSError:
        return ""


def _addresses() -> list[str]:
    """Where other machines may reach this one: the interface that leads to the store's host first."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "192.0.2.1"), 9))  # nothing is sent
        found.append(probe.getsockname()[0])
    with contextlib.suppress(OSError):
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    return list(dict.fromkeys(found))


def _reach(addresses: list[str], port: int) -> socket.socket:
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), timeout=5)
    return socket.create_connection((addresses[-1], port), timeout=5)
