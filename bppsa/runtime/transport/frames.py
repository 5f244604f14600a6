"""Frames, and a connection that they are written to and read from without ever waiting."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch

CHUNK = 1 << 12  # bytes that are read without knowing of what frame
_HEAD = struct.Struct("<BIII")  # kind, step, number, bytes of the body
_PLAIN = 1 << 15  # bytes up to which Python's own memory, that it fills with zeros, is as good
_AT_ONCE = 64  # buffers

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
        """The frame as it goes over the wire."""
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


class Line:
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
                data = self.connection.recv(CHUNK)
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
        """The frames that are there as a whole."""
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
