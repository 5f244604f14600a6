"""Small frames between a worker and every other, and the news that a worker is gone.

A killed process closes its connections at once, whoever hosts the store and whatever its threads were doing; so nothing
has to beat, a job may take minutes, and a process that is only stopped is not taken for dead. The thread sleeps in
`select` between frames. Words, as of the job that a worker begins, wake it only when there are many, or when the worker
is gone: to wake a thread costs more than a word does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
import weakref
from typing import Protocol

from bppsa.common.process.forks import in_children
from bppsa.runtime.transport.frames import CHUNK, Frame, Line

_BYE = 0  # kind of the frame that announces a closed connection; other kinds are the listener's
_GOODBYE = 3.0  # seconds that peers have at most to read the last of it
_LAST = 0.5  # seconds in which the last words of a peer come whose connection is closed


class Listener(Protocol):
    """Called by the thread of the watch, one call at a time."""

    def heard(self, peer: int, frame: Frame) -> None: ...

    def lost(self, peer: int, left: bool) -> None:
        """The connection is closed; left: the peer said so before."""

    def broken(self, error: BaseException) -> None:
        """The thread ends, as a call of the listener has raised."""


_WATCHES: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """The connections of one rank, and the thread that reads them. `tell` never blocks.

    lines, words: by peer, non-blocking. The listener is held weakly.
    """

    def __init__(self, lines: dict[int, socket.socket], words: dict[int, socket.socket], listener: Listener) -> None:
        self._lines = {peer: Line(peer, connection) for peer, connection in lines.items()}
        self._words = {peer: Line(peer, connection) for peer, connection in words.items()}
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
        """Sends to a neighbour, which hears it at the latest when this rank is gone."""
        self._say(self._words[peer], frame)

    def _say(self, line: Line, frame: Frame) -> None:
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
        """Closes the copies of a forked child, or a killed parent would seem to live on."""
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

    def _hear(self, line: Line) -> None:
        if line.is_open and not self._heard(line):
            self._leave(line)
            if line is self._lines[line.peer]:
                self._lost(line)

    def _heard(self, line: Line) -> bool:
        """Hands on what is there. Whether the connection is open."""
        is_open = line.read()
        listener = self._listener()
        for frame in line.frames():
            if frame.kind == _BYE:
                line.left, is_open = True, False
            elif listener is not None:
                listener.heard(line.peer, frame)
        return is_open

    def _lost(self, line: Line) -> None:
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

    def _leave(self, line: Line) -> None:
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
                while line.connection.recv(CHUNK):
                    pass
        for line in self._all:
            line.close()
        self._selector.close()
        self._woken.close()
        self._bell.close()


@in_children
def _forget_all() -> None:
    for watch in _WATCHES:
        watch.forget()
