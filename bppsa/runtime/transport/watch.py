"""Small frames between a worker and every other, and the news that a worker is gone.

A killed process closes its connections at once, whoever hosts the store and whatever its threads were doing; so nothing
has to beat, a job may take minutes, and a process that is only stopped is not taken for dead. The thread sleeps in
`select` between frames. Words, as of the job that a worker begins, wake it only when there are many, or when the worker
is gone: to wake a thread costs more than a word does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import torch

_HEAD = struct.Struct("<BIII")  # kind, step, number, bytes of the body
_BYE = 0  # kind of the frame that announces a closed connection; other kinds are the listener's
_CHUNK = 1 << 12  # bytes that are read without knowing of what frame
_PLAIN = 1 << 15  # bytes up to which Python's own memory, that it fills with zeros, is as good
_AT_ONCE = 64  # buffers
_GOODBYE = 3.0  # seconds that peers have at most to read the last of it
_LAST = 0.5  # seconds in which the last words of a peer come whose connection is closed


Bytes = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """tail: what follows the body in its place, and is not copied before it is written; a frame that was read has
    none."""

    kind: int  # 1 to 255
    step: int
    number: int
    body: Bytes = b""
    tail: tuple[Bytes, ...] = ()

    def buffers(self) -> list[memoryview]:
        """As it goes over the wire."""
        size = len(self.body) + sum(len(buffer) for buffer in self.tail)
        head = _HEAD.pack(self.kind, self.step, self.number, size)
        return [memoryview(head + bytes(self.body)), *(memoryview(buffer) for buffer in self.tail)]


@dataclass
class _Unfinished:
    """A frame that is being read, with room for the whole of it."""

    kind: int
    step: int
    number: int
    body: bytearray | memoryview
    filled: int


class Listener(Protocol):
    """Called by the thread of the watch, one call at a time."""

    def heard(self, peer: int, frame: Frame) -> None: ...

    def lost(self, peer: int, left: bool) -> None:
        """The connection is closed; left: the peer said so before."""

    def broken(self, error: BaseException) -> None:
        """The thread ends, as a call of the listener has raised."""


class _WatchedConnection:
    """The connection to one peer: what is still to be written, and what was read of an unfinished frame."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.connection = connection
        self.lock = threading.Lock()  # of `unsent`; it also keeps frames in order
        self.unsent: deque[memoryview] = deque()
        self.unread = bytearray()  # the head of a frame, as far as it is there
        self.unfinished: _Unfinished | None = None
        self.left = False
        self.is_open = True

    def write(self) -> bool:
        """Writes what the connection takes now. Whether something is left; the lock is held."""
        while self.unsent:
            try:
                sent = self.send()
            except BlockingIOError:
                return True
            except OSError:  # closed by the peer, as the reading side finds out
                self.unsent.clear()
                return False
            while self.unsent and sent >= len(self.unsent[0]):
                sent -= len(self.unsent.popleft())
            if sent:
                self.unsent[0] = self.unsent[0][sent:]
        return False

    def send(self) -> int:
        """Gives the connection as much as it takes. Windows has no sendmsg."""
        if hasattr(self.connection, "sendmsg"):
            return self.connection.sendmsg(islice(self.unsent, _AT_ONCE))
        return self.connection.send(self.unsent[0])

    def close(self) -> None:
        with self.lock:
            self.is_open = False
            self.unsent.clear()
            self.connection.close()

    def read(self) -> bool:
        """Reads what is there, or what is missing of an unfinished frame. Whether the connection is open."""
        whole = self.unfinished
        try:
            if whole is None:
                data = self.connection.recv(_CHUNK)
                self.unread += data
                return bool(data)
            count = self.connection.recv_into(memoryview(whole.body)[whole.filled :])
        except BlockingIOError:
            return True
        except OSError:
            return False
        whole.filled += count
        return count > 0

    def frames(self) -> list[Frame]:
        """Those that are there as a whole."""
        found, at = [], 0
        while self.unfinished is None and len(self.unread) - at >= _HEAD.size:
            kind, step, number, size = _HEAD.unpack_from(self.unread, at)
            at += _HEAD.size
            there = min(size, len(self.unread) - at)
            body = _room(size)
            body[:there] = self.unread[at : at + there]
            at += there
            self.unfinished = _Unfinished(kind, step, number, body, there)
            found += self.finished()
        del self.unread[:at]
        return found or self.finished()

    def finished(self) -> list[Frame]:
        whole = self.unfinished
        if whole is None or whole.filled < len(whole.body):
            return []
        self.unfinished = None
        return [Frame(whole.kind, whole.step, whole.number, whole.body)]


def _room(size: int) -> bytearray | memoryview:
    return bytearray(size) if size <= _PLAIN else torch.empty(size, dtype=torch.uint8).numpy().data


_WATCHES: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """The connections of one rank, and the thread that reads them. `tell` never blocks.

    lines, words: by peer, non-blocking. The listener is held weakly.
    """

    def __init__(self, lines: dict[int, socket.socket], words: dict[int, socket.socket], listener: Listener) -> None:
        self._lines = {peer: _WatchedConnection(peer, connection) for peer, connection in lines.items()}
        self._words = {peer: _WatchedConnection(peer, connection) for peer, connection in words.items()}
        self._all = [*self._lines.values(), *self._words.values()]
        self._listener = weakref.ref(listener)
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._bell = socket.socketpair()
        for end in (self._woken, self._bell):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for line in self._all:
            self._selector.register(line.connection, selectors.EVENT_READ, line)
        self._thread = threading.Thread(target=self._run, name="bppsa-watch", daemon=True)
        _WATCHES.add(self)
        self._thread.start()

    def tell(self, peer: int, frame: Frame) -> None:
        self._say(self._lines[peer], frame)

    def mention(self, peer: int, frame: Frame) -> None:
        """To a neighbour, which hears it at the latest when this rank is gone."""
        self._say(self._words[peer], frame)

    def _say(self, line: _WatchedConnection, frame: Frame) -> None:
        with line.lock:
            waiting = bool(line.unsent)
            line.unsent.extend(frame.buffers())
            if not waiting and line.write():
                self._ring()

    def tell_all(self, frame: Frame) -> None:
        for peer in self._lines:
            self.tell(peer, frame)

    def close(self) -> None:
        """Says goodbye and ends the thread. What was told before still goes out, for some seconds at most."""
        if self._closing:
            return
        self.tell_all(Frame(_BYE, 0, 0))
        self._closing = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_GOODBYE + 1)

    def forget(self) -> None:
        """In a forked child: closes its copies, or a killed parent would seem to live on."""
        self._closing = True
        for line in self._all:
            line.connection.close()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def _run(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select():
                    if key.data is None:
                        self._drain_bell()
                    elif events & selectors.EVENT_READ:
                        self._hear(key.data)
                self._write()
        except BaseException as error:
            listener = self._listener()
            if listener is not None:
                listener.broken(error)
            raise
        finally:
            self._end()

    def _drain_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _hear(self, line: _WatchedConnection) -> None:
        if line.is_open and not self._heard(line):
            self._leave(line)
            if line is self._lines[line.peer]:
                self._lost(line)

    def _heard(self, line: _WatchedConnection) -> bool:
        """Hands on what is there. Whether the connection is open."""
        is_open = line.read()
        listener = self._listener()
        for frame in line.frames():
            if frame.kind == _BYE:
                line.left, is_open = True, False
            elif listener is not None:
                listener.heard(line.peer, frame)
        return is_open

    def _lost(self, line: _WatchedConnection) -> None:
        """Where the peer did not say goodbye, the last that it has mentioned is heard first."""
        words = self._words.get(line.peer)
        if words is not None and words.is_open:
            words.connection.settimeout(_LAST)
            while not line.left and self._heard(words):
                pass
            self._leave(words)
        listener = self._listener()
        if listener is not None:
            listener.lost(line.peer, line.left)

    def _leave(self, line: _WatchedConnection) -> None:
        self._selector.unregister(line.connection)
        line.close()

    def _write(self) -> None:
        """Writes on, and asks to be woken by the lines that are full."""
        for line in self._all:
            with line.lock:
                full = bool(line.unsent) and line.write()
            if line.is_open:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
                if self._selector.get_key(line.connection).events != events:
                    self._selector.modify(line.connection, events, line)

    def _end(self) -> None:
        """Waits for the peers to close their ends: a connection that is closed with something unread in it is reset,
        and the peer would lose what it had not read."""
        limit = time.monotonic() + _GOODBYE
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.connection.settimeout(max(0.01, limit - time.monotonic()))
                with line.lock:
                    line.write()
                while line.connection.recv(_CHUNK):
                    pass
        for line in self._all:
            line.close()
        self._selector.close()
        self._woken.close()
        self._bell.close()


def _forget_all() -> None:
    for watch in _WATCHES:
        watch.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
